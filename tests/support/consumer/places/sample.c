/* SPDX-License-Identifier: Apache-2.0 */
/* compare(): has the sampler compare the stack, which walks it twice by itself.  */

#include "places.h"

#include <signal.h>
#include <stdio.h>

NOINLINE void compare(const char *place)
{
  raise(SIGPROF);
  printf("%s\n", place);
  fflush(stdout);
}
