/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is stepped through instruction by instruction: first calls through
   the PLT, functions of libc with deep and with changing frames, a handler.
   `finished` is where the stepping ends.  */

#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "stop.h"

static NOINLINE int compare(const void *left, const void *right)
{
  sink++;
  return strcmp(*(char *const *)left, *(char *const *)right);
}

static NOINLINE void handle(int number)
{
  char room[100];
  memset(room, number, sizeof room);
  sink += room[7];
}

static NOINLINE long realigned(unsigned size)
{
  _Alignas(64) char room[64];
  char *bytes = alloca(size);
  memset(bytes, 1, size);
  memset(room, 2, sizeof room);
  return bytes[size / 2] + room[9] + sink;
}

static NOINLINE long round_of_work(unsigned number)
{
  char text[200];
  char *words[24];
  struct tm date;
  time_t seconds = (time_t)number * 86400 * 300;
  unsigned count = 0;
  char *rest = text;
  char *word;

  sink += realigned(number * 40 + 100);
  snprintf(text, sizeof text, "%s is %d of %+.3f and %#lx in %5.2e %ls", "one", (int)number, number / 7.0, 123456789ul,
           1e30 / (number + 1), L"wide");
  for (word = strtok_r(text, " ", &rest); word && count < 24; word = strtok_r(NULL, " ", &rest))
    words[count++] = strdup(word);
  qsort(words, count, sizeof words[0], compare);
  sink += strtol("-12345", NULL, 10) + (long)strtod("3.1415926535e-7", NULL);
  gmtime_r(&seconds, &date);
  strftime(text, sizeof text, "%Y-%m-%d %A %H:%M", &date);
  raise(SIGUSR1);
  while (count > 0)
    free(words[--count]);
  return sink + (long)strlen(text);
}

NOINLINE void finished(void);

NOINLINE void finished(void)
{
  __asm__ volatile("");
}

int main(void)
{
  unsigned number;

  signal(SIGUSR1, handle);
  stop_here();
  for (number = 0; number < 4; number++)
    sink += round_of_work(number);
  finished();
  return 0;
}
