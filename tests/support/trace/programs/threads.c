/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that wait in different places at different depths.  */

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "stop.h"

#define COUNT 6

static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;

static NOINLINE long waits(long kind, long depth)
{
  if (depth > 0)
    return waits(kind, depth - 1) + sink;
  pthread_barrier_wait(&barrier);
  switch (kind % 4) {
  case 0:
    pause();
    break;
  case 1:
    pthread_mutex_lock(&mutex);
    break;
  case 2:
    pthread_mutex_lock(&mutex);
    pthread_cond_wait(&condition, &mutex);
    break;
  default:
    sem_wait(&semaphore);
  }
  return sink;
}

static void *run(void *argument)
{
  long number = (long)argument;
  sink += waits(number, number * 3);
  return NULL;
}

int main(int argc, char **argv)
{
  pthread_t threads[COUNT];
  pthread_attr_t attributes;
  long index;

  (void)argv;
  dies = argc > 1;
  pthread_mutex_lock(&mutex);
  sem_init(&semaphore, 0, 0);
  pthread_barrier_init(&barrier, NULL, COUNT + 1);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 16);
  for (index = 0; index < COUNT; index++)
    pthread_create(&threads[index], &attributes, run, (void *)index);
  pthread_barrier_wait(&barrier);
  usleep(20000);
  stop_here();
  _exit(0);
}
