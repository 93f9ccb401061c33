/* SPDX-License-Identifier: Apache-2.0 */
/* Times look-ups in sections (see bench/lookup.py): lookup ADDRESSES ROUNDS (VADDR SECTION)...

   ADDRESSES is a file of 64-bit virtual addresses.  Each SECTION is a raw section made for virtual address VADDR; all
   must give the same rows.  Prints a line for each round: nanoseconds of a look-up in each section.  */
#define _POSIX_C_SOURCE 199309L
#include "../tests/support/consumer/reader.c"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* AMD64's, by DWARF's numbers.  */
enum { SP = 7, FP = 6 };
/* Each pass over the addresses is in another order; the median pass counts.  */
enum { PASSES = 64, MAX_SECTIONS = 8 };

struct section { const uint8_t *bytes; size_t size; uint64_t vaddr; };

static _Noreturn void fail(const char *what, const char *message) {
  fprintf(stderr, "lookup: %s: %s\n", what, message);
  exit(1);
}

static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0)
    fail(path, "cannot be read");
  *size = ftell(file);
  rewind(file);
  void *bytes = malloc(*size + 1);
  if (bytes == NULL || fread(bytes, 1, *size, file) != *size)
    fail(path, "cannot be read");
  fclose(file);
  return bytes;
}

/* Return a number for the row of an address, 0 if there is none.  */
static uint64_t look_up(const struct section *section, uint64_t vaddr) {
  struct row row;
  if (!find_row(section->bytes, section->size, section->vaddr, vaddr, SP, FP, &row))
    return 0;
  uint64_t sum = 1 + row.outermost;
  for (const struct rule *rule = row.rules; rule < row.rules + 3; rule++)
    sum = (sum ^ (uint64_t)rule->offset << 8 ^ rule->number << 2 ^ rule->is_given << 1 ^ rule->load)
          * 0x9e3779b97f4a7c15u;
  return sum;
}

static int compare(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Return the nanoseconds of a look-up.  */
static double measure(const struct section *section, uint64_t *vaddrs, size_t count) {
  static volatile uint64_t sum;
  double times[PASSES];
  for (int pass = 0; pass < PASSES; pass++) {
    for (size_t i = count - 1; i > 0; i--) {
      size_t other = rand() % (i + 1);
      uint64_t vaddr = vaddrs[i];
      vaddrs[i] = vaddrs[other];
      vaddrs[other] = vaddr;
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t i = 0; i < count; i++)
      sum += look_up(section, vaddrs[i]);
    clock_gettime(CLOCK_MONOTONIC, &end);
    times[pass] = ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count;
  }
  qsort(times, PASSES, sizeof times[0], compare);
  return times[PASSES / 2];
}

int main(int argc, char **argv) {
  struct section sections[MAX_SECTIONS];
  size_t size;
  int count = 0;

  if (argc < 5 || argc % 2 == 0 || argc > 3 + 2 * MAX_SECTIONS)
    fail("usage", "ADDRESSES ROUNDS (VADDR SECTION)...");
  uint64_t *vaddrs = read_file(argv[1], &size);
  size_t vaddr_count = size / sizeof vaddrs[0];
  for (char **word = argv + 3; *word != NULL; word += 2) {
    struct section *section = &sections[count++];
    section->vaddr = strtoull(word[0], NULL, 0);
    section->bytes = read_file(word[1], &section->size);
    for (size_t i = 0; i < vaddr_count; i++) {
      uint64_t found = look_up(section, vaddrs[i]);
      if (found == 0 || found != look_up(&sections[0], vaddrs[i]))
        fail(word[1], "no row, or another one than the first section's");
    }
  }
  for (int rounds = atoi(argv[2]); rounds > 0; rounds--)
    for (int i = 0; i < count; i++)
      printf("%.2f%c", measure(&sections[i], vaddrs, vaddr_count), i + 1 < count ? ' ' : '\n');
}
