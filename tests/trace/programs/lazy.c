/* SPDX-License-Identifier: Apache-2.0 */
/* The first call of a function of another library: its stub, the resolver and
   ld.so's search for the symbol are on the stack.  */

#include <string.h>

#include "stop.h"

/* Where ld.so put the resolver's address, for a debugger to read.  */
extern void *_GLOBAL_OFFSET_TABLE_[] __attribute__((visibility("hidden")));
void *volatile resolver;

static NOINLINE long call(const char *text, long depth)
{
  if (depth > 0)
    return call(text, depth - 1) + sink;
  return (long)strspn(text, "abc") + sink;
}

int main(int argc, char **argv)
{
  dies = argc > 1;
  resolver = _GLOBAL_OFFSET_TABLE_[2];
  stop_here();
  sink += call(argv[0], 5);
  return 0;
}
