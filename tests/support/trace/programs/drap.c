/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks that are realigned: GCC keeps the incoming SP in a register of its own
   choice (DRAP), and CFA is loaded from the frame.  */

#include <alloca.h>
#include <string.h>

#include "stop.h"

static NOINLINE void use(void *left, void *right)
{
  __asm__ volatile("" : : "r"(left), "r"(right) : "memory");
}

static NOINLINE long aligned(long depth)
{
  _Alignas(128) char room[128];
  memset(room, (int)depth, sizeof room);
  use(room, room);
  if (depth == 0)
    stop_here();
  else
    sink += aligned(depth - 1);
  return room[5];
}

static NOINLINE long aligned_with_alloca(unsigned size, long a, long b, long c, long d, long e, long f, long g)
{
  _Alignas(64) char room[64];
  char *bytes = alloca(size);
  memset(bytes, 2, size);
  memset(room, 3, sizeof room);
  use(room, bytes);
  sink += aligned(3);
  return bytes[size / 2] + room[7] + a + b + c + d + e + f + g;
}

int main(int argc, char **argv)
{
  (void)argv;
  dies = argc > 1;
  sink += aligned_with_alloca((unsigned)argc * 77, 1, 2, 3, 4, 5, 6, 7);
  return 0;
}
