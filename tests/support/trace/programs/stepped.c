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

/* With an argument on the stack, GCC keeps the incoming SP in a register of its
   own choice.  */
NOINLINE long realigned(unsigned size, long b, long c, long d, long e, long f, long seventh);

NOINLINE long realigned(unsigned size, long b, long c, long d, long e, long f, long seventh)
{
  _Alignas(64) char room[64];
  char *bytes = alloca(size);
  memset(bytes, 1, size);
  memset(room, 2, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
  return bytes[size / 2] + room[9] + sink + b + c + d + e + f + seventh;
}

/* Calls realigned() with a number in FP that is no address, as code without
   frame pointers may: in its epilogue GCC's CFI goes on to look for FP where
   FP, which has its old value again, points to.  */
#if defined __x86_64__
long with_number_in_fp(unsigned size, long b, long c, long d, long e, long f);
__asm__(".text\n.type with_number_in_fp, @function\nwith_number_in_fp:\n.cfi_startproc\npush %rbp\n"
        ".cfi_def_cfa_offset 16\n.cfi_offset %rbp, -16\nmov $7, %ebp\npush $0\n.cfi_def_cfa_offset 24\npush $5\n"
        ".cfi_def_cfa_offset 32\ncall realigned\nadd $16, %rsp\n.cfi_def_cfa_offset 16\npop %rbp\n"
        ".cfi_def_cfa_offset 8\n.cfi_restore %rbp\nret\n.cfi_endproc\n.size with_number_in_fp, . - with_number_in_fp\n");
#else
#define with_number_in_fp(...) realigned(__VA_ARGS__, 5)
#endif

static NOINLINE long round_of_work(unsigned number)
{
  char text[200];
  char *words[24];
  struct tm date;
  time_t seconds = (time_t)number * 86400 * 300;
  unsigned count = 0;
  char *rest = text;
  char *word;

  sink += with_number_in_fp(number * 40 + 100, 1, 2, 3, 4, 5);
  raise(SIGUSR1);
  snprintf(text, sizeof text, "%s is %d of %+.3f and %#lx in %5.2e %ls", "one", (int)number, number / 7.0, 123456789ul,
           1e30 / (number + 1), L"wide");
  for (word = strtok_r(text, " ", &rest); word && count < 24; word = strtok_r(NULL, " ", &rest))
    words[count++] = strdup(word);
  qsort(words, count, sizeof words[0], compare);
  sink += strtol("-12345", NULL, 10) + (long)strtod("3.1415926535e-7", NULL);
  gmtime_r(&seconds, &date);
  strftime(text, sizeof text, "%Y-%m-%d %A %H:%M", &date);
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
