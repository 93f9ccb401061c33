/* SPDX-License-Identifier: Apache-2.0 */
/* libc on the stack: a comparison that qsort calls, and in it a search.  */

#include <search.h>

#include "stop.h"

static unsigned calls;
static int is_inside;

static NOINLINE int compare_inner(const void *left, const void *right)
{
  int a = *(const int *)left, b = *(const int *)right;
  if (is_inside && ++calls == 40)
    stop_here();
  return a < b ? -1 : a > b;
}

static NOINLINE int compare_outer(const void *left, const void *right)
{
  static const int table[] = {1, 3, 5, 7, 9, 11, 13};
  size_t count = 7;
  int key = *(const int *)left % 14;
  is_inside = 1;
  sink += lfind(&key, table, &count, sizeof table[0], compare_inner) != NULL;
  is_inside = 0;
  return compare_inner(left, right) + (int)(sink & 0);
}

int main(int argc, char **argv)
{
  int items[32];
  int index;

  (void)argv;
  dies = argc > 1;
  for (index = 0; index < 32; index++)
    items[index] = index * 37 % 101;
  qsort(items, 32, sizeof items[0], compare_outer);
  return items[3] < items[2];
}
