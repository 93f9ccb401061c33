/* SPDX-License-Identifier: Apache-2.0 */
/* A short program to be sampled at every instruction between SIGUSR1 and
   SIGUSR2: handlers (nested, and on a stack of their own), recursion, qsort,
   alloca, a realigned stack, a first call through the PLT, a longjmp.  */

#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned long total;
static jmp_buf escape;

static __attribute__((noinline)) unsigned long recurse(unsigned depth)
{
  unsigned long sum = depth;

  if (depth > 0)
    sum += recurse(depth - 1) * 3;
  return sum + total;
}

static __attribute__((noinline)) int compare(const void *left,
                                             const void *right)
{
  return *(const unsigned char *)left - *(const unsigned char *)right;
}

static __attribute__((noinline)) void sort(void)
{
  unsigned char bytes[] = {9, 1, 8, 2, 7};

  qsort(bytes, sizeof bytes, 1, compare);
  total += bytes[1];
}

static __attribute__((noinline)) void fill(unsigned size)
{
  volatile unsigned long line[8] __attribute__((aligned(64)));
  volatile unsigned char *bytes = alloca(size);

  bytes[size - 1] = 3;
  line[size % 8] = bytes[size - 1];
  total += line[size % 8];
}

static __attribute__((noinline)) void leave(void)
{
  if (total > 0)
    longjmp(escape, 1);
}

static void on_inner(int number)
{
  total += recurse((unsigned)number % 4);
}

static void on_outer(int number)
{
  total += recurse(3);
  raise(number == SIGHUP ? SIGWINCH : SIGURG);
}

static void install(int number, void (*handler)(int), int flags)
{
  struct sigaction action;

  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(number, &action, NULL);
}

int main(void)
{
  static unsigned char alternate[64 * 1024] __attribute__((aligned(16)));
  stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};

  sigaltstack(&stack, NULL);
  install(SIGHUP, on_outer, 0);
  install(SIGINT, on_outer, SA_ONSTACK);
  install(SIGURG, on_inner, 0);
  install(SIGWINCH, on_inner, SA_ONSTACK);
  install(SIGUSR1, SIG_IGN, 0);
  install(SIGUSR2, SIG_IGN, 0);
  raise(SIGUSR1);
  raise(SIGHUP);
  raise(SIGINT);
  sort();
  fill(100 + (unsigned)total % 2);
  if (setjmp(escape) == 0)
    leave();
  raise(SIGUSR2);
  printf("total %lu\n", total);
  return 0;
}
