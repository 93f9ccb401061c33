/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static NOINLINE unsigned long mix(unsigned long value, unsigned turns)
{
  while (turns-- > 0)
    value = value * 2862933555777941757ul + 3037000493ul;
  return value;
}

static NOINLINE int compare(const void *left, const void *right)
{
  unsigned long a = mix(*(const unsigned long *)left, 20), b = mix(*(const unsigned long *)right, 20);
  return (a > b) - (a < b);
}

/* Frames of any size: the CFA is found by the frame pointer here, by the stack pointer elsewhere.  */
static NOINLINE unsigned long spread(unsigned long seed, unsigned count)
{
  unsigned long *items = alloca(count * sizeof *items);
  unsigned index;

  for (index = 0; index < count; index++)
    items[index] = seed = mix(seed, 3);
  qsort(items, count, sizeof *items, compare);
  return items[count / 2];
}

static NOINLINE unsigned long descend(unsigned long seed, unsigned depth)
{
  if (depth == 0)
    return spread(seed, 8 + seed % 56);
  return descend(mix(seed, depth), depth - 1) * 3 + depth;
}

unsigned long words_count(unsigned long seed, unsigned rounds)
{
  unsigned long sum = 0;

  while (rounds-- > 0)
    sum += descend(seed + rounds, rounds % 24);
  return sum;
}
