/* SPDX-License-Identifier: Apache-2.0 */
/* Frames whose size is known at run time only: alloca, arrays of variable
   length, and one of more than 64 KiB below them.  */

#include <alloca.h>
#include <string.h>

#include "stop.h"

static NOINLINE void large(void)
{
  volatile char room[100000];
  room[sink & 0xff] = 1;
  stop_here();
  sink += room[17];
}

static NOINLINE long with_array(long count)
{
  long items[count];
  memset(items, 1, sizeof items);
  large();
  return items[count / 2] + sink;
}

static NOINLINE long with_alloca(unsigned size)
{
  char *bytes = alloca(size);
  memset(bytes, 1, size);
  sink += with_array(bytes[size / 2] + 30);
  return bytes[size / 3];
}

static NOINLINE long loop(unsigned count)
{
  long total = 0;
  while (count-- > 0) {
    char *bytes = alloca(count * 24 + 16);
    memset(bytes, (int)count, 16);
    total += with_alloca(count * 100 + 50) + bytes[3];
  }
  return total;
}

int main(int argc, char **argv)
{
  (void)argv;
  dies = argc > 1;
  sink += loop((unsigned)argc + 3);
  return 0;
}
