/* SPDX-License-Identifier: Apache-2.0 */
/* A deep stack: a function that calls itself, two that call each other.  */

#include "stop.h"

static NOINLINE long odd(long depth);

static NOINLINE long even(long depth)
{
  char room[48];
  __asm__ volatile("" : : "r"(room) : "memory");
  if (depth == 0)
    stop_here();
  else
    sink += odd(depth - 1);
  return depth + room[0] * 0;
}

static NOINLINE long odd(long depth)
{
  sink += even(depth - 1);
  return depth + sink;
}

static NOINLINE long recurse(long depth, long left, long right)
{
  if (depth == 0)
    return even(20) + left;
  sink += recurse(depth - 1, right + depth, left);
  return sink + depth;
}

int main(int argc, char **argv)
{
  (void)argv;
  dies = argc > 1;
  sink += recurse(150, argc, 7);
  return 0;
}
