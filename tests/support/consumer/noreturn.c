/* SPDX-License-Identifier: Apache-2.0 */
/* A stack that passes calls that do not return.  Each is the last instruction
   of its function, and the next function is aligned: the return address lies in
   the padding between.  One SIGPROF is raised, for the sampler, below all of
   them.  `noreturn CASE`: `longjmp`, `abort`, `assert` or `free`.  Compile it with
   -fno-reorder-functions -fno-reorder-blocks-and-partition: cold parts of
   functions are not aligned.  */

#define _GNU_SOURCE
#include <assert.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined __clang__
#define ALONE __attribute__((noinline, aligned(64)))
#else
#define ALONE __attribute__((noinline, noclone, aligned(64)))
#endif
#define NORETURN __attribute__((noreturn))

static jmp_buf escape;
static volatile int total;

static ALONE NORETURN void leave(int number)
{
  raise(SIGPROF);
  total += number;
  longjmp(escape, 1);
}

static ALONE NORETURN void fail_by_longjmp(int number)
{
  total += number;
  leave(number + 1);
}

static ALONE NORETURN void fail_by_abort(int number)
{
  total += number;
  abort();
}

/* The C library prints a message, and aborts by functions of its own.  */
static ALONE NORETURN void fail_by_assert(int number)
{
  total += number;
  __assert_fail("expected", "noreturn.c", 1, "fail_by_assert");
}

static ALONE void free_what_was_not_allocated(int number)
{
  static long bytes[8];
  void *volatile pointer = &bytes[number];

  free(pointer);
  total += number;
}

static void on_abort(int number)
{
  raise(SIGPROF);
  total += number;
  longjmp(escape, 1);
}

static ALONE int run(const char *name)
{
  if (strcmp(name, "longjmp") == 0)
    fail_by_longjmp(1);
  if (strcmp(name, "abort") == 0)
    fail_by_abort(1);
  if (strcmp(name, "assert") == 0)
    fail_by_assert(1);
  if (strcmp(name, "free") == 0)
    free_what_was_not_allocated(1);
  return 2;
}

int main(int argc, char **argv)
{
  signal(SIGABRT, on_abort);
  if (setjmp(escape) == 0)
    return run(argc > 1 ? argv[1] : "");
  puts("left");
  return 0;
}
