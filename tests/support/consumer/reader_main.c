/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what reader.c finds: reader SECTION ADDRESS SP FP < PCs, a line for each.  */
#include "reader.c"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print(const struct rule *rule) {
  if (rule->is_given)
    printf(" %d:%" PRIu32 ":%" PRId64 ":%d", rule->from_register, rule->number, rule->offset, rule->load);
  else
    printf(" -");
}

int main(int argc, char **argv) {
  static uint8_t section[1 << 24];
  struct row row;
  uint64_t pc;
  FILE *file = argc == 5 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL)
    return 2;
  size_t size = fread(section, 1, sizeof section, file);
  while (scanf("%" SCNu64, &pc) == 1) {
    if (!find_row(section, size, strtoull(argv[2], NULL, 0), pc, atoi(argv[3]), atoi(argv[4]), &row))
      printf("none");
    else if (row.outermost)
      printf("outermost%s", row.signal ? " signal" : "");
    else {
      printf("row%s%s", row.signal ? " signal" : "", row.ra_signed ? " signed" : "");
      for (int i = 0; i < 3; i++)
        print(&row.rules[i]);
    }
    putchar('\n');
  }
  return ferror(file);
}
