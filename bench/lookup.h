/* SPDX-License-Identifier: Apache-2.0 */
/* Two readers that answer one question: how are CFA, RA and the caller's FP
   computed at a PC?  Both are written for bench/lookup.py, for AMD64, and
   allocate nothing.  They trust their input as far as an unwinder does: offsets
   are checked, meanings are not.  */

#ifndef LOOKUP_H
#define LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REGISTER_FP = 6, REGISTER_SP = 7, REGISTER_RA = 16, BASE_CFA = 0xff };

/* What a rule says of a value.  */
enum rule_kind {
  RULE_UNCHANGED, /* it is still in its register */
  RULE_COMPUTED,  /* base + offset */
  RULE_LOADED,    /* *(base + offset) */
  RULE_OTHER      /* DWARF only: whatever else */
};

struct rule {
  int32_t offset;
  uint8_t base; /* DWARF register, or BASE_CFA */
  uint8_t kind;
};

/* The answer.  If RA is undefined, is_outermost is set and all rules are 0.  */
struct frame_rules {
  struct rule cfa;
  struct rule ra;
  struct rule fp;
  bool is_outermost;
};

/* A raw section of version 3.  */
struct section {
  const unsigned char *functions;
  const unsigned char *rows;
  const unsigned char *end;
  uint32_t function_count;
  int8_t fixed_ra_offset;
};

/* Reads the header of the SIZE bytes at BYTES.  Returns false where the section
   is not of AMD64, version 3, sorted, with PC-relative starts.  */
bool section_open(struct section *section, const unsigned char *bytes,
                  size_t size);

/* Looks PC up, an address as if the section were loaded where its bytes are.
   Returns false if no function or no row holds it.  */
bool lookup_sframe(const struct section *section, uint64_t pc,
                   struct frame_rules *rules);

/* Runs the instructions of the DWARF FDE at FDE and of its CIE up to PC;
   FUNCTION is the address that the FDE's code starts at.  Returns false if it
   meets what it cannot read.  */
bool run_cfi(const unsigned char *fde, uint64_t function, uint64_t pc,
             struct frame_rules *rules);

#endif
