/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is linked, or opened by dlopen(), and a function of it that is chosen when it is first called.  */

#include "places.h"

#include <stddef.h>

void (*when_resolved)(void);

/* Of the program that loads this, if it has one.  */
extern void loaded(void) __attribute__((weak));

__attribute__((constructor)) static void start(void)
{
  if (loaded != NULL)
    loaded();
  STAY();
}

NOINLINE int call_back(void (*function)(void))
{
  function();
  STAY();
  return 1;
}

static int one_more(int number)
{
  return number + 1;
}

static int (*choose(void))(int)
{
  if (when_resolved != NULL)
    when_resolved();
  STAY();
  return one_more;
}

int resolved_late(int number) __attribute__((ifunc("choose")));
