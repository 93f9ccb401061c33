/* SPDX-License-Identifier: Apache-2.0 */
/* The same interface as sframe_section.c, by GNU binutils' libsframe: sections
   are decoded, rows found and their fields read by its functions alone.  AMD64;
   versions 2 and 3 with the libsframe that knows both, else version 2.

   sframe_decode allocates, so sections should be opened outside of signal
   handlers; finding a row allocates nothing.  */

#define ATTRIBUTE_UNUSED __attribute__((unused))
#include "sframe_walk.h"

#include <sframe-api.h>
#include <string.h>

#ifndef __x86_64__
#error "this reader gives AMD64's rows"
#endif

/* What libsframe says of one function.  */
struct function {
  uint64_t start;
  uint32_t size;
  unsigned char info;
  unsigned char info2;
};

bool sframe_section_open(struct sframe_section *section, const void *bytes,
                         size_t size)
{
  sframe_decoder_ctx *decoder;
  int error = 0;

  memset(section, 0, sizeof *section);
  decoder = sframe_decode(bytes, size, &error);
  if (decoder == NULL)
    return false;
  section->decoder = decoder;
  section->bytes = bytes;
  section->size = size;
  section->version = sframe_decoder_get_version(decoder);
  section->fixed_fp_offset = sframe_decoder_get_fixed_fp_offset(decoder);
  section->fixed_ra_offset = sframe_decoder_get_fixed_ra_offset(decoder);
  section->function_count = sframe_decoder_get_num_fidx(decoder);
  return sframe_decoder_get_abi_arch(decoder) == SFRAME_ABI_AMD64_ENDIAN_LITTLE;
}

#ifdef SFRAME_VERSION_3

static bool load_function(const struct sframe_section *section, uint32_t index,
                          struct function *function)
{
  uint64_t base = (uint64_t)(uintptr_t)section->bytes;
  uint32_t row_count;
  uint8_t block_size;
  int64_t start;
  int error = 0;

  memset(function, 0, sizeof *function);
  if ((sframe_decoder_get_flags(section->decoder)
       & SFRAME_F_FDE_FUNC_START_PCREL) != 0)
    base += sframe_decoder_get_offsetof_fde_start_addr(section->decoder, index,
                                                       &error);
  if (error != 0)
    return false;
  if (section->version == SFRAME_VERSION_3) {
    if (sframe_decoder_get_funcdesc_v3(section->decoder, index, &row_count,
                                       &function->size, &start,
                                       &function->info, &function->info2,
                                       &block_size) != 0)
      return false;
  } else {
    int32_t narrow_start;
    if (sframe_decoder_get_funcdesc_v2(section->decoder, index, &row_count,
                                       &function->size, &narrow_start,
                                       &function->info, &block_size) != 0)
      return false;
    start = narrow_start;
  }
  function->start = base + (uint64_t)start;
  return true;
}

static bool is_signal_frame(const struct sframe_section *section,
                            const struct function *function)
{
  return section->version == SFRAME_VERSION_3
         && SFRAME_V3_FDE_SIGNAL_P(function->info);
}

static unsigned type_of(const struct function *function)
{
  return SFRAME_V3_FDE_TYPE(function->info2);
}

static bool is_outermost(const struct sframe_section *section,
                         const sframe_frame_row_entry *row)
{
  int error = 0;
  return sframe_fre_get_ra_undefined_p(section->decoder, row, &error);
}

/* The words of a flexible row.  What libsframe gives as the CFA's offset must be
   the one among them.  */
static bool take_flexible(const struct sframe_section *section,
                          const sframe_frame_row_entry *found,
                          struct sframe_row *row)
{
  unsigned shift;
  unsigned index;
  int32_t offset;
  int error = 0;

  row->word_count = SFRAME_V3_FRE_DATAWORD_COUNT(found->fre_info);
  row->word_size = 1u << SFRAME_V3_FRE_DATAWORD_SIZE(found->fre_info);
  if (row->word_count > MAX_NUM_DATAWORDS)
    return false;
  for (index = 0; index < row->word_count; index++) {
    row->words[index] = sframe_get_fre_udata(found, (int)index, &error);
    if (error != 0)
      return false;
  }
  shift = 32 - 8 * row->word_size;
  for (index = 0; index < row->word_count; index++)
    row->words[index] = row->words[index] << shift >> shift;
  offset = sframe_fre_get_cfa_offset(section->decoder, found,
                                     SFRAME_FDE_TYPE_FLEX, &error);
  return error == 0 && offset == (int32_t)(row->words[1] << shift) >> shift;
}

#else

static bool load_function(const struct sframe_section *section, uint32_t index,
                          struct function *function)
{
  uint32_t row_count;
  uint8_t block_size;
  int32_t start;

  memset(function, 0, sizeof *function);
  if (sframe_decoder_get_funcdesc_v2(section->decoder, index, &row_count,
                                     &function->size, &start, &function->info,
                                     &block_size) != 0)
    return false;
  function->start = (uint64_t)(uintptr_t)section->bytes
                    + (uint64_t)(int64_t)start;
  return true;
}

static bool is_signal_frame(const struct sframe_section *section,
                            const struct function *function)
{
  (void)section;
  (void)function;
  return false;
}

static unsigned type_of(const struct function *function)
{
  (void)function;
  return 0;
}

static bool is_outermost(const struct sframe_section *section,
                         const sframe_frame_row_entry *row)
{
  (void)section;
  return SFRAME_V1_FRE_OFFSET_COUNT(row->fre_info) == 0;
}

static bool take_flexible(const struct sframe_section *section,
                          const sframe_frame_row_entry *found,
                          struct sframe_row *row)
{
  (void)section;
  (void)found;
  (void)row;
  return false;
}

#endif

/* Says which of libsframe's sorted functions holds PC.  */
static bool find_function(const struct sframe_section *section, uint64_t pc,
                          struct function *function)
{
  uint32_t low = 0, high = section->function_count;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (!load_function(section, middle, function))
      return false;
    if (function->start <= pc)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 && load_function(section, low - 1, function)
         && pc - function->start < function->size;
}

/* The fields of a default row as words; FP's is the second one on AMD64.  */
static bool take_default(const struct sframe_section *section,
                         sframe_frame_row_entry *found, struct sframe_row *row)
{
  int error = 0;
  int32_t offset;

  row->word_size = 4;
  row->base_is_sp =
      sframe_fre_get_base_reg_id(found, &error) == SFRAME_BASE_REG_SP;
  if (error != 0)
    return false;
  row->words[0] = (uint32_t)sframe_fre_get_cfa_offset(section->decoder, found,
#ifdef SFRAME_VERSION_3
                                                      SFRAME_FDE_TYPE_DEFAULT,
#endif
                                                      &error);
  if (error != 0)
    return false;
  row->word_count = 1;
  offset = sframe_fre_get_ra_offset(section->decoder, found,
#ifdef SFRAME_VERSION_3
                                    SFRAME_FDE_TYPE_DEFAULT,
#endif
                                    &error);
  if (error != 0 || offset != section->fixed_ra_offset)
    return false;
  offset = sframe_fre_get_fp_offset(section->decoder, found,
#ifdef SFRAME_VERSION_3
                                    SFRAME_FDE_TYPE_DEFAULT,
#endif
                                    &error);
  if (error == 0) /* else this row does not save FP */
    row->words[row->word_count++] = (uint32_t)offset;
  return true;
}

enum sframe_ending sframe_find_row(const struct sframe_section *section,
                                   uint64_t pc, struct sframe_row *row)
{
  sframe_frame_row_entry found;
  struct function function;
  uint64_t delta = pc - (uint64_t)(uintptr_t)section->bytes;

  if (!find_function(section, pc, &function))
    return SFRAME_NO_FUNCTION;
  memset(row, 0, sizeof *row);
  row->function_start = function.start;
  row->function_size = function.size;
  row->is_flexible = type_of(&function) == 1;
  row->is_signal_frame = is_signal_frame(section, &function);
  memset(&found, 0, sizeof found);
#ifdef SFRAME_VERSION_3
  if (sframe_find_fre(section->decoder, (int64_t)delta, &found) != 0)
    return SFRAME_NO_ROW;
#else
  if (sframe_find_fre(section->decoder, (int32_t)delta, &found) != 0)
    return SFRAME_NO_ROW;
#endif
  row->start_delta = found.fre_start_addr;
  if (is_outermost(section, &found))
    return SFRAME_OUTERMOST;
  if (row->is_flexible)
    return take_flexible(section, &found, row) ? SFRAME_STEPPED
                                               : SFRAME_BAD_ROW;
  return take_default(section, &found, row) ? SFRAME_STEPPED : SFRAME_BAD_ROW;
}
