/* SPDX-License-Identifier: Apache-2.0 */
/* Times look-ups of the addresses of one module (see bench/lookup.py).

   lookup MODULE ADDRESSES ROUNDS (NAME VADDR SECTION)...

   MODULE is loaded; its constructors run, nothing else of it.  ADDRESSES is a
   file of 64-bit virtual addresses in random order.  Each SECTION is a raw
   section made for virtual address VADDR.  First every address is looked up in
   every way, and the answers are compared.  Then come ROUNDS rounds; ROUNDS 0
   prints each address with its answer.  Output: lines of words.  */

#ifndef __x86_64__
#error "registers and section header are those of AMD64"
#endif

#define _GNU_SOURCE
#include "lookup.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  MAX_LAYOUTS = 8,
  MAX_WAYS = MAX_LAYOUTS + 1,
  /* Addresses that a profile of one program meets again and again.  */
  BATCH_SIZE = 1024,
  PASSES = 64,
  CACHE_LINE_SIZE = 64
};

/* libgcc's, as its unwinder calls it.  */
struct dwarf_eh_bases {
  void *tbase;
  void *dbase;
  void *func;
};
const void *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *bases);

struct layout {
  const char *name;
  struct section section;
  uint64_t bias; /* from virtual addresses to those of section */
};

struct way {
  const char *name;
  const struct layout *layout; /* NULL: DWARF */
};

struct inputs {
  uint64_t module_bias;
  uint64_t *addresses;
  size_t address_count;
  struct layout layouts[MAX_LAYOUTS];
  struct way ways[MAX_WAYS];
  unsigned way_count;
  uint32_t *order; /* indices of addresses; each pass in another order */
  size_t batch_size;
};

_Noreturn static void fail(const char *message, const char *what)
{
  fprintf(stderr, "lookup: %s: %s\n", what, message);
  exit(1);
}

static void *read_file(const char *path, size_t *size)
{
  FILE *file = fopen(path, "rb");
  long end;
  void *bytes;

  if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0)
    fail("cannot be read", path);
  rewind(file);
  *size = (size_t)end;
  bytes = aligned_alloc(CACHE_LINE_SIZE, (*size / CACHE_LINE_SIZE + 1)
                                             * CACHE_LINE_SIZE);
  if (bytes == NULL || fread(bytes, 1, *size, file) != *size)
    fail("cannot be read", path);
  fclose(file);
  return bytes;
}

static uint64_t load_module(const char *path)
{
  void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  struct link_map *map;

  if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
    fail(dlerror(), path);
  return map->l_addr;
}

/* --- One look-up --- */

static bool answer(const struct inputs *inputs, const struct way *way,
                   uint64_t vaddr, struct frame_rules *rules)
{
  struct dwarf_eh_bases bases;
  const unsigned char *fde;
  uint64_t pc;

  if (way->layout != NULL)
    return lookup_sframe(&way->layout->section, vaddr + way->layout->bias,
                         rules);
  pc = vaddr + inputs->module_bias;
  fde = _Unwind_Find_FDE((void *)(uintptr_t)pc, &bases);
  return fde != NULL
         && run_cfi(fde, (uint64_t)(uintptr_t)bases.func, pc, rules);
}

static uint64_t mix_rule(uint64_t sum, struct rule rule)
{
  return (sum ^ ((uint64_t)(uint32_t)rule.offset << 16
                 | (uint64_t)rule.base << 8 | rule.kind))
         * 0x9e3779b97f4a7c15u;
}

/* A number for an answer; equal answers have equal numbers.  */
static uint64_t number_of(const struct frame_rules *rules)
{
  return mix_rule(mix_rule(mix_rule(rules->is_outermost, rules->cfa),
                           rules->ra),
                  rules->fp);
}

/* --- Are the answers equal? --- */

static bool same_rule(struct rule sframe, struct rule dwarf)
{
  return sframe.kind == dwarf.kind && sframe.base == dwarf.base
         && sframe.offset == dwarf.offset;
}

/* Whether the rule is a register and an offset, or a slot below the CFA, which
   both formats spell alike.  */
static bool is_plain(const struct frame_rules *dwarf)
{
  return dwarf->cfa.kind != RULE_OTHER && dwarf->ra.kind != RULE_OTHER
         && dwarf->fp.kind != RULE_OTHER;
}

static void print_rules(uint64_t vaddr, const char *name,
                        const struct frame_rules *rules)
{
  const struct rule *each[] = {&rules->cfa, &rules->ra, &rules->fp};
  unsigned index;

  printf("row 0x%llx %s %d", (unsigned long long)vaddr, name,
         rules->is_outermost);
  for (index = 0; index < 3; index++)
    printf(" %d:%d:%d", each[index]->kind, each[index]->base,
           each[index]->offset);
  putchar('\n');
}

/* Compares all answers for all addresses; exits where two differ.  */
static void check(const struct inputs *inputs, bool prints)
{
  size_t index, compared_count = 0;

  for (index = 0; index < inputs->address_count; index++) {
    uint64_t vaddr = inputs->addresses[index];
    struct frame_rules first, rules;
    unsigned number;

    memset(&first, 0, sizeof first);
    for (number = 0; number < inputs->way_count; number++) {
      const struct way *way = &inputs->ways[number];
      bool is_equal = answer(inputs, way, vaddr, &rules);

      if (prints && is_equal)
        print_rules(vaddr, way->name, &rules);
      if (number == 0) {
        first = rules;
      } else if (way->layout != NULL) {
        is_equal = is_equal && number_of(&rules) == number_of(&first);
      } else if (is_equal && is_plain(&rules)) {
        is_equal = rules.is_outermost == first.is_outermost
                   && same_rule(first.cfa, rules.cfa)
                   && same_rule(first.ra, rules.ra)
                   && same_rule(first.fp, rules.fp);
        compared_count += is_equal;
      }
      if (!is_equal) {
        print_rules(vaddr, inputs->ways[0].name, &first);
        print_rules(vaddr, way->name, &rules);
        fflush(stdout);
        fail("no row, or another one than the first section's", way->name);
      }
    }
  }
  printf("checked %zu %zu\n", inputs->address_count, compared_count);
}

/* --- Time --- */

static uint64_t now_ns(void)
{
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int compare_times(const void *a, const void *b)
{
  uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

  return (left > right) - (left < right);
}

/* The median, which a few times with an interruption do not change.  */
static double median_of(uint64_t *times, unsigned count)
{
  qsort(times, count, sizeof *times, compare_times);
  return ((double)times[(count - 1) / 2] + (double)times[count / 2]) / 2;
}

/* Looks the batch up, pass by pass.  Returns the time of a look-up in ns, of the
   median pass.  */
static double time_passes(const struct inputs *inputs, const struct way *way,
                          uint64_t *sum)
{
  uint64_t times[PASSES];
  struct frame_rules rules;
  const uint32_t *order = inputs->order;
  unsigned pass;

  for (pass = 0; pass < PASSES; pass++) {
    uint64_t start = now_ns();
    size_t index;

    for (index = 0; index < inputs->batch_size; index++) {
      answer(inputs, way, inputs->addresses[*order++], &rules);
      *sum += number_of(&rules);
    }
    times[pass] = now_ns() - start;
  }
  return median_of(times, PASSES) / (double)inputs->batch_size;
}

/* A small generator of numbers (xorshift64), with a fixed seed.  */
static uint64_t next_random(uint64_t *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static void prepare_orders(struct inputs *inputs)
{
  uint64_t state = 20;
  size_t pass, index;

  inputs->batch_size = inputs->address_count < BATCH_SIZE
                           ? inputs->address_count
                           : (size_t)BATCH_SIZE;
  inputs->order =
      malloc(inputs->batch_size * PASSES * sizeof *inputs->order);
  if (inputs->order == NULL)
    fail("no memory", "order");
  for (pass = 0; pass < PASSES; pass++) {
    uint32_t *order = inputs->order + pass * inputs->batch_size;

    for (index = 0; index < inputs->batch_size; index++) {
      size_t other = next_random(&state) % (index + 1);
      order[index] = order[other];
      order[other] = (uint32_t)index;
    }
  }
}

/* One round, each way after the other.  Sections must agree in what they add up;
   DWARF spells some rules otherwise.  */
static void measure(const struct inputs *inputs, unsigned round)
{
  uint64_t sums[MAX_WAYS] = {0};
  unsigned turn, count = inputs->way_count;

  for (turn = 0; turn < count; turn++) {
    unsigned number = (turn + round) % count;
    const struct way *way = &inputs->ways[number];

    printf("time %s %.2f\n", way->name,
           time_passes(inputs, way, &sums[number]));
  }
  for (turn = 1; turn < count; turn++)
    if (inputs->ways[turn].layout != NULL && sums[turn] != sums[0])
      fail("another checksum than the first section's",
           inputs->ways[turn].name);
  fflush(stdout);
}

int main(int argc, char **argv)
{
  static struct inputs inputs;
  unsigned rounds, round;
  size_t size;
  int index;

  if (argc < 7 || (argc - 4) % 3 != 0 || argc > 4 + 3 * MAX_LAYOUTS)
    fail("MODULE ADDRESSES ROUNDS (NAME VADDR SECTION)...", "usage");
  inputs.module_bias = load_module(argv[1]);
  inputs.addresses = read_file(argv[2], &size);
  inputs.address_count = size / sizeof *inputs.addresses;
  rounds = (unsigned)strtoul(argv[3], NULL, 10);
  for (index = 4; index < argc; index += 3) {
    struct layout *layout = &inputs.layouts[inputs.way_count];
    unsigned char *bytes = read_file(argv[index + 2], &size);

    layout->name = argv[index];
    layout->bias = (uint64_t)(uintptr_t)bytes - strtoull(argv[index + 1],
                                                         NULL, 0);
    if (!section_open(&layout->section, bytes, size))
      fail("not a section that can be read", argv[index + 2]);
    inputs.ways[inputs.way_count++] =
        (struct way){layout->name, layout};
  }
  inputs.ways[inputs.way_count++] = (struct way){"dwarf", NULL};
  if (inputs.address_count == 0)
    fail("no address", argv[2]);

  check(&inputs, rounds == 0);
  if (rounds == 0)
    return 0;
  prepare_orders(&inputs);
  for (round = 0; round < rounds; round++)
    measure(&inputs, round);
  return 0;
}
