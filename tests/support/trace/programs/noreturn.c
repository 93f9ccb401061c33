/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that end with a call that does not come back: the return address
   is the next function's, whose CFI is another one.  */

#include "stop.h"

static NOINLINE __attribute__((noreturn)) void last(long depth);

static NOINLINE __attribute__((noreturn)) void ends(long depth)
{
  volatile char room[200];
  room[depth] = 1;
  last(depth - room[depth]);
}

static NOINLINE __attribute__((noreturn)) void last(long depth)
{
  volatile char room[60];
  room[depth] = 1;
  if (depth > 0 && room[depth])
    ends(depth);
  stop_here();
  _Exit(0);
}

int main(int argc, char **argv)
{
  (void)argv;
  dies = argc > 1;
  ends(30);
}
