/* SPDX-License-Identifier: Apache-2.0 */
/* Signal handlers, one in another: on the normal stack, on an alternate one
   (ON_ALTERNATE_STACK 1: below the normal one, 2: above), and after a fault in a function's first instruction,
   where PC - 1 is in another function.  */

#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "stop.h"

#ifndef ON_ALTERNATE_STACK
#define ON_ALTERNATE_STACK 0
#endif

/* Two functions without room between them; the second faults at its entry.
   The CFI of the first says something that is wrong for the second.  */
void faults_at_once(void);

#if defined __x86_64__
__asm__(".text\n.type before, @function\nbefore:\n.cfi_startproc\n.cfi_def_cfa_offset 4096\nnop\n.cfi_endproc\n"
        ".size before, . - before\n.globl faults_at_once\n.type faults_at_once, @function\nfaults_at_once:\n"
        ".cfi_startproc\nud2\nret\n.cfi_endproc\n.size faults_at_once, . - faults_at_once\n");
#elif defined __aarch64__
__asm__(".text\n.type before, @function\nbefore:\n.cfi_startproc\n.cfi_def_cfa_offset 4096\nnop\n.cfi_endproc\n"
        ".size before, . - before\n.globl faults_at_once\n.type faults_at_once, @function\nfaults_at_once:\n"
        ".cfi_startproc\nudf #0\nret\n.cfi_endproc\n.size faults_at_once, . - faults_at_once\n");
#else
__asm__(".text\n.type before, @function\nbefore:\n.cfi_startproc\n.cfi_def_cfa_offset 4096\nnopr\n.cfi_endproc\n"
        ".size before, . - before\n.globl faults_at_once\n.type faults_at_once, @function\nfaults_at_once:\n"
        ".cfi_startproc\n.word 0, 0\nbr %r14\n.cfi_endproc\n.size faults_at_once, . - faults_at_once\n");
#endif

static NOINLINE void third(int number)
{
  (void)number;
  stop_here();
  sink++;
  _Exit(0);
}

static NOINLINE void second(int number)
{
  (void)number;
  sink++;
  faults_at_once();
  sink++;
}

static NOINLINE void first(int number)
{
  char room[700];
  memset(room, number, sizeof room);
  raise(SIGUSR2);
  sink += room[9];
}

static NOINLINE long work(long depth)
{
  if (depth > 0)
    return work(depth - 1) + sink;
  raise(SIGUSR1);
  return sink;
}

int main(int argc, char **argv)
{
  static const int numbers[] = {SIGUSR1, SIGUSR2, SIGILL};
  static void (*const handlers[])(int) = {first, second, third};
  char above[ON_ALTERNATE_STACK == 2 ? 1 << 16 : 16];
  stack_t alternate = {.ss_sp = ON_ALTERNATE_STACK == 2 ? above : malloc(1 << 16), .ss_size = 1 << 16};
  unsigned index;

  (void)argv;
  dies = argc > 1;
  if (ON_ALTERNATE_STACK)
    sigaltstack(&alternate, NULL);
  for (index = 0; index < 3; index++) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handlers[index];
    action.sa_flags = ON_ALTERNATE_STACK && index == 1 ? SA_ONSTACK : 0;
    sigaction(numbers[index], &action, NULL);
  }
  sink += work(4);
  return 0;
}
