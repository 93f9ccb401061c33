/* SPDX-License-Identifier: Apache-2.0 */
/* Walking: one step at a time from a frame to its caller.  */

#include "sframe_walk.h"

#include <string.h>

const char *sframe_ending_name(enum sframe_ending ending)
{
  static const char *const names[SFRAME_ENDING_COUNT] = {
      [SFRAME_STEPPED] = "stepped",
      [SFRAME_NO_MODULE] = "no_module",
      [SFRAME_NO_SECTION] = "no_section",
      [SFRAME_BAD_SECTION] = "bad_section",
      [SFRAME_NO_FUNCTION] = "no_function",
      [SFRAME_NO_ROW] = "no_row",
      [SFRAME_BAD_ROW] = "bad_row",
      [SFRAME_BAD_MEMORY] = "bad_memory",
      [SFRAME_UNSAFE_REGISTER] = "unsafe_register",
      [SFRAME_OUTERMOST] = "outermost",
      [SFRAME_NULL_RA] = "null_ra",
      [SFRAME_LOOP] = "loop",
      [SFRAME_TOO_DEEP] = "too_deep",
  };
  return names[ending];
}

/* --- What a rule can read --- */

static bool read_u64(struct sframe_walker *walker, uint64_t address,
                     uint64_t *value)
{
  uint64_t offset = address % SFRAME_BLOCK_SIZE;

  if (offset > SFRAME_BLOCK_SIZE - sizeof *value)
    return sframe_copy_memory(address, value, sizeof *value);
  if (walker->block_start != address - offset) {
    walker->block_start = 1;
    if (!sframe_copy_memory(address - offset, walker->block, SFRAME_BLOCK_SIZE))
      return false;
    walker->block_start = address - offset;
  }
  memcpy(value, walker->block + offset, sizeof *value);
  return true;
}

/* CFA, RA and FP of one frame while a row is applied to it.  */
struct recovery {
  uint64_t cfa;
  uint64_t ra;
  uint64_t fp;
};

/* Data word INDEX of ROW as a signed number.  */
static int64_t signed_word(const struct sframe_row *row, unsigned index)
{
  switch (row->word_size) {
  case 1:
    return (int8_t)row->words[index];
  case 2:
    return (int16_t)row->words[index];
  default:
    return (int32_t)row->words[index];
  }
}

/* The offset from the base to the CFA; s390x stores it moved and scaled.  */
static int64_t cfa_offset(const struct sframe_row *row, unsigned index)
{
#if defined __s390x__
  return signed_word(row, index) * 8 + 160;
#else
  return signed_word(row, index);
#endif
}

/* The value of DWARF register NUMBER in the walker's frame.  SP and FP are
   known in every frame, the others in the topmost one.  */
static enum sframe_ending get_register(const struct sframe_walker *walker,
                                       uint32_t number, uint64_t *value)
{
  if (number == SFRAME_REGISTER_SP) {
    *value = walker->frame.sp;
    return SFRAME_STEPPED;
  }
  if (number == SFRAME_REGISTER_FP) {
    *value = walker->frame.fp;
    return SFRAME_STEPPED;
  }
  if (!walker->frame.is_topmost || number >= SFRAME_MAX_REGISTERS
      || (walker->registers.known_mask >> number & 1) == 0)
    return SFRAME_UNSAFE_REGISTER;
  *value = walker->registers.values[number];
  return SFRAME_STEPPED;
}

static enum sframe_ending load(struct sframe_walker *walker, uint64_t address,
                               uint64_t *value)
{
  return read_u64(walker, address, value) ? SFRAME_STEPPED : SFRAME_BAD_MEMORY;
}

/* RA where no rule of the row speaks of it.  */
static enum sframe_ending recover_implied_ra(
    struct sframe_walker *walker, const struct sframe_section *section,
    struct recovery *recovery)
{
  if (section->fixed_ra_offset != 0)
    return load(walker, recovery->cfa + (uint64_t)section->fixed_ra_offset,
                &recovery->ra);
  if (!SFRAME_RA_HAS_REGISTER)
    return SFRAME_BAD_SECTION;
  /* Only a frame that made no call can still have it in the register.  */
  if (!walker->frame.ra_is_known)
    return SFRAME_UNSAFE_REGISTER;
  recovery->ra = walker->frame.ra;
  return SFRAME_STEPPED;
}

/* FP where no rule of the row speaks of it.  */
static enum sframe_ending recover_implied_fp(
    struct sframe_walker *walker, const struct sframe_section *section,
    struct recovery *recovery)
{
  recovery->fp = walker->frame.fp;
  if (section->fixed_fp_offset != 0)
    return load(walker, recovery->cfa + (uint64_t)section->fixed_fp_offset,
                &recovery->fp);
  return SFRAME_STEPPED;
}

/* A word of a default row that tells where RA or FP was saved.  */
static enum sframe_ending recover_saved(struct sframe_walker *walker,
                                        const struct sframe_section *section,
                                        const struct sframe_row *row,
                                        unsigned index, uint64_t cfa,
                                        uint64_t *value)
{
  int64_t offset = signed_word(row, index);

#if defined __s390x__
  /* Version 2 marks a register number by its lowest bit.  */
  if (section->version == 2 && (offset & 1) != 0)
    return get_register(walker, (uint32_t)(offset >> 1), value);
#else
  (void)section;
#endif
  return load(walker, cfa + (uint64_t)offset, value);
}

static enum sframe_ending apply_default(struct sframe_walker *walker,
                                        const struct sframe_section *section,
                                        const struct sframe_row *row,
                                        struct recovery *recovery)
{
  uint64_t base = row->base_is_sp ? walker->frame.sp : walker->frame.fp;
  unsigned fp_index = SFRAME_RA_HAS_REGISTER ? 2 : 1;
  enum sframe_ending ending;

  if (row->word_count > fp_index + 1)
    return SFRAME_BAD_ROW;
  recovery->cfa = base + (uint64_t)cfa_offset(row, 0);
  if (SFRAME_RA_HAS_REGISTER && row->word_count > 1 && row->words[1] != 0)
    ending = recover_saved(walker, section, row, 1, recovery->cfa,
                           &recovery->ra);
  else
    ending = recover_implied_ra(walker, section, recovery);
  if (ending != SFRAME_STEPPED)
    return ending;
  if (row->word_count > fp_index)
    return recover_saved(walker, section, row, fp_index, recovery->cfa,
                         &recovery->fp);
  return recover_implied_fp(walker, section, recovery);
}

/* One (control, offset) pair.  The CFA is the base unless a register is.  */
static enum sframe_ending apply_pair(struct sframe_walker *walker,
                                     uint32_t control, int64_t offset,
                                     uint64_t cfa, uint64_t *value)
{
  uint64_t base = cfa;

  if ((control & 4) != 0)
    return SFRAME_BAD_ROW;
  if ((control & 1) != 0) {
    enum sframe_ending ending = get_register(walker, control >> 3, &base);
    if (ending != SFRAME_STEPPED)
      return ending;
  }
  if ((control & 2) != 0)
    return load(walker, base + (uint64_t)offset, value);
  *value = base + (uint64_t)offset;
  return SFRAME_STEPPED;
}

static enum sframe_ending apply_flexible(struct sframe_walker *walker,
                                         const struct sframe_section *section,
                                         const struct sframe_row *row,
                                         struct recovery *recovery)
{
  unsigned count = row->word_count;
  bool has_ra = count >= 4 && row->words[2] != 0;
  unsigned fp_index = has_ra ? 4 : 3;
  enum sframe_ending ending;

  /* CFA | CFA RA | CFA padding FP | CFA RA FP; nothing may be left over.  */
  if (count != 2 && count != fp_index && count != fp_index + 2)
    return SFRAME_BAD_ROW;
  if (count == 3 || (row->words[0] & 1) == 0)
    return SFRAME_BAD_ROW;
  ending = apply_pair(walker, row->words[0], cfa_offset(row, 1), 0,
                      &recovery->cfa);
  if (ending != SFRAME_STEPPED)
    return ending;
  if (has_ra)
    ending = apply_pair(walker, row->words[2], signed_word(row, 3),
                        recovery->cfa, &recovery->ra);
  else
    ending = recover_implied_ra(walker, section, recovery);
  if (ending != SFRAME_STEPPED)
    return ending;
  if (count < fp_index + 2)
    return recover_implied_fp(walker, section, recovery);
  if (row->words[fp_index] == 0)
    return SFRAME_BAD_ROW;
  return apply_pair(walker, row->words[fp_index],
                    signed_word(row, fp_index + 1), recovery->cfa,
                    &recovery->fp);
}

/* --- One step --- */

/* Version 2 has no signal-frame bit: a function that holds the kernel's
   sigreturn sequence at the return address is the frame of a handler.  */
static bool is_sigreturn_code(uint64_t pc)
{
#if defined __x86_64__
  static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0,
                                       0x0f, 0x05};
#elif defined __aarch64__
  static const unsigned char code[] = {0x68, 0x11, 0x80, 0xd2,
                                       0x01, 0x00, 0x00, 0xd4};
#else
  static const unsigned char code[] = {0x0a, 0xad};
#endif
  unsigned char found[sizeof code];

  return sframe_copy_memory(pc, found, sizeof found)
         && memcmp(found, code, sizeof code) == 0;
}

static uint64_t without_signature(uint64_t ra)
{
#if defined __aarch64__
  register uint64_t x30 __asm__("x30") = ra;
  __asm__("hint #7" : "+r"(x30)); /* xpaclri; does nothing on older machines */
  return x30;
#else
  return ra;
#endif
}

static uint64_t caller_sp(uint64_t cfa)
{
#if defined __s390x__
  return cfa - 160;
#else
  return cfa;
#endif
}

/* Stacks grow down, so each caller's SP is higher.  A handler may run on a
   stack of its own, and a frame that made no call may own no stack at all where
   calls do not push.  */
static bool is_loop(const struct sframe_frame *frame, uint64_t next_sp,
                    bool is_signal_frame)
{
  if (is_signal_frame || next_sp > frame->sp)
    return false;
  return !(SFRAME_RA_HAS_REGISTER && frame->ra_is_known
           && next_sp == frame->sp);
}

static enum sframe_ending find_row(const struct sframe_walker *walker,
                                   const struct sframe_section **section,
                                   struct sframe_row *row)
{
  const struct sframe_frame *frame = &walker->frame;
  /* A return address may lie behind its call's function or row.  */
  bool is_pc = frame->pc_is_exact || walker->looks_up_ra;
  uint64_t pc = is_pc ? frame->pc : frame->pc - 1;
  const struct sframe_module *module = sframe_module_of(walker->modules, pc);

  if (module == NULL)
    return SFRAME_NO_MODULE;
  if (module->state == SFRAME_MODULE_WITHOUT)
    return SFRAME_NO_SECTION;
  if (module->state == SFRAME_MODULE_BAD)
    return SFRAME_BAD_SECTION;
  *section = &module->section;
  return sframe_find_row(*section, pc, row);
}

enum sframe_ending sframe_walk_step(struct sframe_walker *walker)
{
  struct sframe_frame *frame = &walker->frame;
  const struct sframe_section *section;
  struct recovery recovery;
  struct sframe_row row;
  bool is_signal_frame;
  enum sframe_ending ending = find_row(walker, &section, &row);

  if (ending != SFRAME_STEPPED)
    return ending;
  if (row.word_count == 0)
    return SFRAME_OUTERMOST;
#if !defined __aarch64__
  if (row.ra_is_signed)
    return SFRAME_BAD_ROW;
#endif
  ending = row.is_flexible ? apply_flexible(walker, section, &row, &recovery)
                           : apply_default(walker, section, &row, &recovery);
  if (ending != SFRAME_STEPPED)
    return ending;
  is_signal_frame = section->version == 2 ? is_sigreturn_code(frame->pc)
                                          : row.is_signal_frame;
  if (is_loop(frame, caller_sp(recovery.cfa), is_signal_frame))
    return SFRAME_LOOP;
  if (row.ra_is_signed)
    recovery.ra = without_signature(recovery.ra);
  if (recovery.ra == 0)
    return SFRAME_NULL_RA;
  frame->pc = recovery.ra;
  frame->sp = caller_sp(recovery.cfa);
  frame->fp = recovery.fp;
  frame->ra = 0;
  frame->is_topmost = false;
  frame->ra_is_known = false;
  frame->pc_is_exact = is_signal_frame;
  return SFRAME_STEPPED;
}
