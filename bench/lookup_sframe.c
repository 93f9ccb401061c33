/* SPDX-License-Identifier: Apache-2.0 */
/* A look-up in an SFrame section as an unwinder in a kernel would do it: the
   function by halves, then the start of one row after the other, and the data
   words of the row in force.  */

#include "lookup.h"

#include <string.h>

enum {
  MAGIC = 0xdee2,
  VERSION = 3,
  ABI_AMD64 = 3,
  FLAGS_SORTED_PCREL = 0x5,
  HEADER_SIZE = 28,
  FUNCTION_SIZE = 16,
  ATTRIBUTE_SIZE = 5,
  INFO_PCMASK = 0x10
};

/* A function, by its record and the attribute before its rows.  */
struct function {
  uint64_t start;
  uint32_t size;
  const unsigned char *rows;
  uint32_t row_count;
  uint8_t info;
  bool is_flexible;
  uint8_t block_size;
};

static uint32_t load_u16(const unsigned char *at)
{
  uint16_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t load_u32(const unsigned char *at)
{
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t load_u64(const unsigned char *at)
{
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

bool section_open(struct section *section, const unsigned char *bytes,
                  size_t size)
{
  uint64_t functions_offset, rows_offset;

  memset(section, 0, sizeof *section);
  if (size < HEADER_SIZE || load_u16(bytes) != MAGIC || bytes[2] != VERSION
      || (bytes[3] & FLAGS_SORTED_PCREL) != FLAGS_SORTED_PCREL
      || bytes[4] != ABI_AMD64)
    return false;
  section->fixed_ra_offset = (int8_t)bytes[6];
  section->function_count = load_u32(bytes + 8);
  functions_offset = HEADER_SIZE + (uint64_t)bytes[7] + load_u32(bytes + 20);
  rows_offset = HEADER_SIZE + (uint64_t)bytes[7] + load_u32(bytes + 24);
  if (functions_offset + (uint64_t)section->function_count * FUNCTION_SIZE > size
      || rows_offset + load_u32(bytes + 16) > size)
    return false;
  section->functions = bytes + functions_offset;
  section->rows = bytes + rows_offset;
  section->end = section->rows + load_u32(bytes + 16);
  return true;
}

/* The record of the last function that starts at or below PC, and its start.
   Returns NULL if there is none.  */
static const unsigned char *search(const struct section *section, uint64_t pc,
                                   uint64_t *start)
{
  uint32_t low = 0, high = section->function_count;
  const unsigned char *found = NULL;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    const unsigned char *at =
        section->functions + (size_t)middle * FUNCTION_SIZE;
    uint64_t candidate = (uintptr_t)at + load_u64(at);

    if (candidate <= pc) {
      low = middle + 1;
      found = at;
      *start = candidate;
    } else {
      high = middle;
    }
  }
  return found;
}

static bool find_function(const struct section *section, uint64_t pc,
                          struct function *function)
{
  const unsigned char *at = search(section, pc, &function->start);

  if (at == NULL)
    return false;
  function->size = load_u32(at + 8);
  if (pc - function->start >= function->size
      || (uint64_t)load_u32(at + 12) + ATTRIBUTE_SIZE
             > (size_t)(section->end - section->rows))
    return false;
  at = section->rows + load_u32(at + 12);
  function->row_count = load_u16(at);
  function->info = at[2];
  function->is_flexible = at[3] == 1;
  function->block_size = at[4];
  function->rows = at + ATTRIBUTE_SIZE;
  return true;
}

static uint32_t load_sized(const unsigned char *at, unsigned size)
{
  return size == 1 ? *at : size == 2 ? load_u16(at) : load_u32(at);
}

/* The info byte of the last row that starts at or below DELTA, or NULL.  */
static const unsigned char *find_row(const struct section *section,
                                     const struct function *function,
                                     uint32_t delta)
{
  unsigned start_size = 1u << (function->info & 0x3);
  const unsigned char *at = function->rows, *found = NULL;
  uint32_t index;

  for (index = 0; index < function->row_count; index++) {
    unsigned char info;

    if ((size_t)(section->end - at) < start_size + 1)
      return NULL;
    if (load_sized(at, start_size) > delta)
      break;
    at += start_size;
    found = at;
    info = *at++;
    at += (size_t)(info >> 1 & 0xf) << (info >> 5 & 3);
  }
  return found;
}

static int32_t word(const unsigned char *words, unsigned size_log2,
                    unsigned index)
{
  switch (size_log2) {
  case 0:
    return (int8_t)words[index];
  case 1:
    return (int16_t)load_u16(words + 2 * (size_t)index);
  default:
    return (int32_t)load_u32(words + 4 * (size_t)index);
  }
}

/* One (control, offset) pair of a flexible row.  */
static struct rule pair(const unsigned char *words, unsigned size_log2,
                        unsigned index)
{
  uint32_t control = (uint32_t)word(words, size_log2, index);
  struct rule rule;

  rule.base = (control & 1) != 0 ? control >> 3 & 0x1f : BASE_CFA;
  rule.kind = (control & 2) != 0 ? RULE_LOADED : RULE_COMPUTED;
  rule.offset = word(words, size_log2, index + 1);
  return rule;
}

static bool decode_row(const struct section *section,
                       const struct function *function,
                       const unsigned char *at, struct frame_rules *rules)
{
  unsigned info = *at++;
  unsigned count = info >> 1 & 0xf, size_log2 = info >> 5 & 3, fp_index;

  if ((size_t)(section->end - at) < (size_t)count << size_log2)
    return false;
  if (count == 0) {
    rules->is_outermost = true;
    return true;
  }
  rules->ra = (struct rule){section->fixed_ra_offset, BASE_CFA, RULE_LOADED};
  if (!function->is_flexible) {
    rules->cfa = (struct rule){word(at, size_log2, 0),
                               (info & 1) != 0 ? REGISTER_SP : REGISTER_FP,
                               RULE_COMPUTED};
    if (count > 1)
      rules->fp =
          (struct rule){word(at, size_log2, 1), BASE_CFA, RULE_LOADED};
    return true;
  }
  /* CFA | CFA RA | CFA padding FP | CFA RA FP */
  if (count < 2)
    return false;
  rules->cfa = pair(at, size_log2, 0);
  fp_index = 3;
  if (count >= 4 && word(at, size_log2, 2) != 0) {
    rules->ra = pair(at, size_log2, 2);
    fp_index = 4;
  }
  if (count >= fp_index + 2)
    rules->fp = pair(at, size_log2, fp_index);
  return true;
}

bool lookup_sframe(const struct section *section, uint64_t pc,
                   struct frame_rules *rules)
{
  struct function function;
  const unsigned char *row;
  uint32_t delta;

  memset(rules, 0, sizeof *rules);
  if (!find_function(section, pc, &function))
    return false;
  if (function.row_count == 0) {
    rules->is_outermost = true;
    return true;
  }
  delta = (uint32_t)(pc - function.start);
  if ((function.info & INFO_PCMASK) != 0) {
    if (function.block_size == 0)
      return false;
    delta %= function.block_size;
  }
  row = find_row(section, &function, delta);
  return row != NULL && decode_row(section, &function, row, rules);
}
