/* SPDX-License-Identifier: Apache-2.0 */
/* The first call of a function of another library: its stub, the resolver and
   ld.so's search for the symbol are on the stack.  */

#include <link.h>
#include <string.h>

#include "stop.h"

/* The resolver's address, for a debugger to read.  */
void *volatile resolver;

/* ld.so puts it into the third word of the PLT's part of the GOT, whose
   address in the dynamic section it has relocated.  */
static NOINLINE void *find_resolver(void)
{
  ElfW(Dyn) *entry = _DYNAMIC;

  while (entry->d_tag != DT_PLTGOT)
    entry++;
  return ((void **)entry->d_un.d_ptr)[2];
}

static NOINLINE long call(const char *text, long depth)
{
  if (depth > 0)
    return call(text, depth - 1) + sink;
  return (long)strspn(text, "abc") + sink;
}

int main(int argc, char **argv)
{
  dies = argc > 1;
  resolver = find_resolver();
  stop_here();
  sink += call(argv[0], 5);
  return 0;
}
