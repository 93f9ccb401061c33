/* SPDX-License-Identifier: Apache-2.0 */
/* Works in signal handlers nearly all the time, so that a sampled stack has a signal frame in its middle.
   `handler SECONDS` of CPU time.  */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned long total;

static __attribute__((noinline)) unsigned long work(unsigned depth)
{
  unsigned turn;
  unsigned long sum = depth;

  if (depth > 0)
    sum += work(depth - 1);
  for (turn = 0; turn < 20000; turn++)
    sum = sum * 2862933555777941757ul + turn;
  return sum;
}

static void on_signal(int number)
{
  total += work(20 + (unsigned)number % 3);
}

int main(int argc, char **argv)
{
  double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
  struct sigaction action = {.sa_handler = on_signal};

  sigaction(SIGUSR1, &action, NULL);
  while ((double)clock() / CLOCKS_PER_SEC < seconds)
    raise(SIGUSR1);
  puts("done");
  return 0;
}
