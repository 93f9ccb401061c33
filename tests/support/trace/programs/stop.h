/* SPDX-License-Identifier: Apache-2.0 */
/* Where a stack is looked at: a debugger stops at stop_here(); a program that
   was given an argument dies there instead, and leaves a core.  */

#include <stdlib.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile int dies;

/* Read and written around calls, so that they are not tail calls.  */
static volatile long sink;

NOINLINE void stop_here(void);

NOINLINE void stop_here(void)
{
  __asm__ volatile("");
  if (dies)
    abort();
}
