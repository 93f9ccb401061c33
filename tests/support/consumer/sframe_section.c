/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding: from the bytes of one SFrame section to the row for a pc.  */

#include "sframe_walk.h"

#include <string.h>

#if defined __x86_64__
enum { NATIVE_ABI = 3 };
#elif defined __aarch64__ && defined __AARCH64EB__
enum { NATIVE_ABI = 1 };
#elif defined __aarch64__
enum { NATIVE_ABI = 2 };
#elif defined __s390x__
enum { NATIVE_ABI = 4 };
#else
#error "no SFrame ABI is defined for this target"
#endif

enum {
  MAGIC = 0xdee2,
  FLAG_SORTED = 0x1,
  FLAG_FRAME_POINTER = 0x2,
  FLAG_START_PCREL = 0x4,
  HEADER_SIZE = 28,
  V2_FUNCTION_SIZE = 20,
  V3_FUNCTION_SIZE = 16,
  V3_ATTRIBUTE_SIZE = 5
};

/* The fields of one function, wherever the version keeps them.  */
struct function {
  uint64_t start;
  uint32_t size;
  uint32_t rows_delta; /* of the first row (V3: attribute) in the sub-section */
  uint32_t row_count;
  uint8_t info;
  uint8_t info2;
  uint8_t block_size;
};

/* A position in the FRE sub-section that cannot leave it.  */
struct cursor {
  const unsigned char *at;
  const unsigned char *end;
};

static uint16_t load_u16(const unsigned char *at)
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

/* Takes SIZE (1, 2 or 4) bytes from CURSOR as an unsigned number.  */
static bool take(struct cursor *cursor, unsigned size, uint32_t *value)
{
  if ((size_t)(cursor->end - cursor->at) < size)
    return false;
  switch (size) {
  case 1:
    *value = cursor->at[0];
    break;
  case 2:
    *value = load_u16(cursor->at);
    break;
  default:
    *value = load_u32(cursor->at);
    break;
  }
  cursor->at += size;
  return true;
}

static size_t function_size_of(const struct sframe_section *section)
{
  return section->version == 2 ? V2_FUNCTION_SIZE : V3_FUNCTION_SIZE;
}

bool sframe_section_open(struct sframe_section *section, const void *bytes,
                         size_t size)
{
  const unsigned char *at = bytes;
  uint8_t known_flags;
  uint64_t body_offset, functions_size, functions_delta, rows_delta;

  memset(section, 0, sizeof *section);
  if (size < HEADER_SIZE || load_u16(at) != MAGIC || at[4] != NATIVE_ABI)
    return false;
  section->bytes = at;
  section->size = size;
  section->version = at[2];
  section->flags = at[3];
  section->fixed_fp_offset = (int8_t)at[5];
  section->fixed_ra_offset = (int8_t)at[6];
  if (section->version == 2)
    known_flags = FLAG_SORTED | FLAG_FRAME_POINTER | FLAG_START_PCREL;
  else if (section->version == 3)
    known_flags = FLAG_SORTED | FLAG_START_PCREL;
  else
    return false;
  if ((section->flags & ~known_flags) != 0)
    return false;

  body_offset = HEADER_SIZE + (uint64_t)at[7];
  section->function_count = load_u32(at + 8);
  section->rows_size = load_u32(at + 16);
  functions_delta = load_u32(at + 20);
  rows_delta = load_u32(at + 24);
  functions_size =
      section->function_count * (uint64_t)function_size_of(section);
  /* The sub-sections tile the section: functions end where rows begin or
     earlier, rows end inside the section.  */
  if (functions_delta + functions_size > rows_delta)
    return false;
  if (body_offset + rows_delta + section->rows_size > size)
    return false;
  section->functions_offset = body_offset + functions_delta;
  section->rows_offset = body_offset + rows_delta;
  return true;
}

/* Reads function INDEX without what version 3 keeps in the attribute.  */
static void load_function(const struct sframe_section *section, uint32_t index,
                          struct function *function)
{
  const unsigned char *at =
      section->bytes + section->functions_offset
      + (size_t)index * function_size_of(section);
  uint64_t base = (section->flags & FLAG_START_PCREL) != 0
                      ? (uint64_t)(uintptr_t)at
                      : (uint64_t)(uintptr_t)section->bytes;

  base += section->displacement;
  memset(function, 0, sizeof *function);
  if (section->version == 2) {
    function->start = base + (uint64_t)(int64_t)(int32_t)load_u32(at);
    function->size = load_u32(at + 4);
    function->rows_delta = load_u32(at + 8);
    function->row_count = load_u32(at + 12);
    function->info = at[16];
    function->block_size = at[17];
  } else {
    function->start = base + load_u64(at);
    function->size = load_u32(at + 8);
    function->rows_delta = load_u32(at + 12);
  }
}

static bool holds(const struct function *function, uint64_t pc)
{
  return pc - function->start < function->size;
}

/* The last function that starts at or below PC decides.  */
static bool search_sorted(const struct sframe_section *section, uint64_t pc,
                          struct function *function)
{
  uint32_t low = 0, high = section->function_count;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    load_function(section, middle, function);
    if (function->start <= pc)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0)
    return false;
  load_function(section, low - 1, function);
  return holds(function, pc);
}

static bool find_function(const struct sframe_section *section, uint64_t pc,
                          struct function *function)
{
  uint32_t index;

  if ((section->flags & FLAG_SORTED) != 0)
    return search_sorted(section, pc, function);
  for (index = 0; index < section->function_count; index++) {
    load_function(section, index, function);
    if (holds(function, pc))
      return true;
  }
  return false;
}

/* Version 3 keeps row count, info bytes, block size in front of the rows.  */
static bool take_attribute(struct cursor *cursor, struct function *function)
{
  if (cursor->end - cursor->at < V3_ATTRIBUTE_SIZE)
    return false;
  function->row_count = load_u16(cursor->at);
  function->info = cursor->at[2];
  function->info2 = cursor->at[3];
  function->block_size = cursor->at[4];
  cursor->at += V3_ATTRIBUTE_SIZE;
  return true;
}

/* Refuses info bytes with bits that the version does not define.  */
static bool info_is_valid(const struct sframe_section *section,
                          const struct function *function)
{
  uint8_t unused_mask = section->version == 2 ? 0xc0 : 0x40;

  if ((function->info & unused_mask) != 0 || (function->info & 0xf) > 2)
    return false;
  if (function->info2 > 1)
    return false;
#if !defined __aarch64__
  if ((function->info & 0x20) != 0)
    return false;
#endif
  return true;
}

/* Takes one row; START_SIZE is the width of its start field in bytes.  */
static bool take_row(struct cursor *cursor, unsigned start_size,
                     struct sframe_row *row)
{
  uint32_t info;
  unsigned index;

  if (!take(cursor, start_size, &row->start_delta) || !take(cursor, 1, &info))
    return false;
  row->base_is_sp = (info & 1) != 0;
  row->word_count = info >> 1 & 0xf;
  if ((info >> 5 & 3) == 3)
    return false;
  row->word_size = 1u << (info >> 5 & 3);
  row->ra_is_signed = (info & 0x80) != 0;
  for (index = 0; index < row->word_count; index++)
    if (!take(cursor, row->word_size, &row->words[index]))
      return false;
  return true;
}

/* Finds the last of the function's rows that starts at or below DELTA.  */
static enum sframe_ending search_rows(const struct function *function,
                                      struct cursor cursor, uint32_t delta,
                                      uint32_t limit, struct sframe_row *row)
{
  unsigned start_size = 1u << (function->info & 0xf);
  struct sframe_row candidate = *row;
  bool found = false;
  uint32_t index;

  for (index = 0; index < function->row_count; index++) {
    uint32_t previous = candidate.start_delta;
    if (!take_row(&cursor, start_size, &candidate))
      return SFRAME_BAD_ROW;
    if (index > 0 && candidate.start_delta <= previous)
      return SFRAME_BAD_ROW;
    if (candidate.start_delta >= limit)
      return SFRAME_BAD_ROW;
    if (candidate.start_delta > delta)
      break;
    *row = candidate;
    found = true;
  }
  return found ? SFRAME_STEPPED : SFRAME_NO_ROW;
}

enum sframe_ending sframe_find_row(const struct sframe_section *section,
                                   uint64_t pc, struct sframe_row *row)
{
  struct function function;
  struct cursor cursor;
  uint32_t delta, limit;

  if (!find_function(section, pc, &function))
    return SFRAME_NO_FUNCTION;
  if (function.rows_delta > section->rows_size)
    return SFRAME_BAD_ROW;
  cursor.at = section->bytes + section->rows_offset + function.rows_delta;
  cursor.end = section->bytes + section->rows_offset + section->rows_size;
  if (section->version == 3 && !take_attribute(&cursor, &function))
    return SFRAME_BAD_ROW;
  if (!info_is_valid(section, &function))
    return SFRAME_BAD_ROW;

  memset(row, 0, sizeof *row);
  row->function_start = function.start;
  row->function_size = function.size;
  row->is_flexible = function.info2 == 1;
  row->is_signal_frame = (function.info & 0x80) != 0;
  if (function.row_count == 0 && section->version == 3 && !row->is_flexible)
    return SFRAME_OUTERMOST;
  delta = (uint32_t)(pc - function.start);
  limit = function.size;
  if ((function.info & 0x10) != 0) {
    if (function.block_size == 0)
      return SFRAME_BAD_ROW;
    delta %= function.block_size;
    limit = function.block_size;
  }
  return search_rows(&function, cursor, delta, limit, row);
}
