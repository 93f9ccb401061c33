// SPDX-License-Identifier: Apache-2.0
// Calls of every kind that gets a PLT stub: lazy ones, one of a function whose address is taken too (.plt.got), and one
// of an IFUNC (.iplt). With -DONE_CALL a library with a single stub.
// Build: see tests/support/stubs/linked.py; each linker and its options make stubs of another kind.
#ifdef ONE_CALL
void first(void);
void caller(void) { first(); }
#else
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int resolved(void) { return 3; }
static void *resolve(void) { return resolved; }
int chosen(void) __attribute__((ifunc("resolve")));

int (*put_line)(const char *) = puts;

int main(int argc, char **argv) {
  put_line = puts;
  puts(argv[0]);
  printf("%d %d\n", chosen(), argc);
  free(malloc(4));
  return write(1, "", 0) + abs(argc) + (getenv("HOME") != 0);
}
#endif
