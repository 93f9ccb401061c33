/* SPDX-License-Identifier: Apache-2.0 */
/* The DWARF side: the instructions of one FDE and of its CIE, run up to a PC.
   libgcc keeps the function that does this to itself; this one does the same
   work with less: it keeps a rule for each register, because a row is known only
   when all instructions before it have run, but evaluates none of them.  */

#include "lookup.h"

#include <string.h>

/* As spelled by DWARF 5, 7.24.  */
enum {
  DW_CFA_nop = 0x00,
  DW_CFA_advance_loc1 = 0x02,
  DW_CFA_advance_loc2 = 0x03,
  DW_CFA_advance_loc4 = 0x04,
  DW_CFA_offset_extended = 0x05,
  DW_CFA_restore_extended = 0x06,
  DW_CFA_undefined = 0x07,
  DW_CFA_same_value = 0x08,
  DW_CFA_register = 0x09,
  DW_CFA_remember_state = 0x0a,
  DW_CFA_restore_state = 0x0b,
  DW_CFA_def_cfa = 0x0c,
  DW_CFA_def_cfa_register = 0x0d,
  DW_CFA_def_cfa_offset = 0x0e,
  DW_CFA_def_cfa_expression = 0x0f,
  DW_CFA_expression = 0x10,
  DW_CFA_offset_extended_sf = 0x11,
  DW_CFA_def_cfa_sf = 0x12,
  DW_CFA_def_cfa_offset_sf = 0x13,
  DW_CFA_val_offset = 0x14,
  DW_CFA_val_offset_sf = 0x15,
  DW_CFA_val_expression = 0x16,
  DW_CFA_GNU_args_size = 0x2e,
  DW_CFA_advance_loc = 0x40,
  DW_CFA_offset = 0x80,
  DW_CFA_restore = 0xc0
};

enum { REGISTER_COUNT = 17, MAX_DEPTH = 8 };

enum register_kind {
  KIND_UNSPECIFIED,
  KIND_UNDEFINED,
  KIND_SAME_VALUE,
  KIND_OFFSET,
  KIND_OTHER
};

struct register_rule {
  int64_t offset;
  uint8_t kind;
};

/* A row under construction.  */
struct row {
  struct register_rule registers[REGISTER_COUNT];
  int64_t cfa_offset;
  uint64_t cfa_register;
  bool cfa_is_expression;
};

struct machine {
  struct row row;
  struct row initial; /* after the CIE's instructions */
  struct row remembered[MAX_DEPTH];
  unsigned depth;
  uint64_t code_alignment;
  int64_t data_alignment;
  uint64_t location;
};

struct cie {
  const unsigned char *instructions;
  const unsigned char *end;
  uint8_t pointer_encoding;
};

static uint32_t load_u32(const unsigned char *at)
{
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

/* Takes the bytes of a LEB128 number.  SIGN becomes the bits above those that
   it has, if its last bit is set.  */
static uint64_t take_leb128(const unsigned char **at, uint64_t *sign)
{
  uint64_t value = 0;
  unsigned shift = 0;
  unsigned char byte;

  do {
    byte = *(*at)++;
    if (shift < 64)
      value |= (uint64_t)(byte & 0x7f) << shift;
    shift += 7;
  } while ((byte & 0x80) != 0);
  *sign = shift < 64 && (byte & 0x40) != 0 ? ~(uint64_t)0 << shift : 0;
  return value;
}

static uint64_t take_uleb128(const unsigned char **at)
{
  uint64_t sign;
  return take_leb128(at, &sign);
}

static int64_t take_sleb128(const unsigned char **at)
{
  uint64_t sign;
  uint64_t value = take_leb128(at, &sign);
  return (int64_t)(value | sign);
}

/* Bytes of a pointer of that encoding, 0 for those of no fixed size.  */
static unsigned pointer_size(uint8_t encoding)
{
  switch (encoding & 0x7) {
  case 2:
    return 2;
  case 3:
    return 4;
  case 0:
  case 4:
    return 8;
  default:
    return 0;
  }
}

/* Reads the CIE at AT.  Returns false for an augmentation that is not known.  */
static bool read_cie(const unsigned char *at, struct cie *cie,
                     struct machine *machine)
{
  const char *augmentation;
  const unsigned char *data_end;
  uint8_t version = at[8];
  uint64_t size;

  if (load_u32(at) == 0xffffffff)
    return false;
  cie->end = at + 4 + load_u32(at);
  cie->pointer_encoding = 0;
  at += 9;
  augmentation = (const char *)at;
  at += strlen(augmentation) + 1;
  machine->code_alignment = take_uleb128(&at);
  machine->data_alignment = take_sleb128(&at);
  if (version == 1)
    at++;
  else
    take_uleb128(&at);
  if (*augmentation != 'z')
    return false;
  size = take_uleb128(&at);
  data_end = at + size;
  while (*++augmentation != '\0') {
    switch (*augmentation) {
    case 'R':
      cie->pointer_encoding = *at++;
      break;
    case 'L':
      at++;
      break;
    case 'P':
      at += 1 + pointer_size(*at);
      break;
    case 'S':
      break;
    default:
      return false;
    }
  }
  cie->instructions = data_end;
  return true;
}

static void set(struct row *row, uint64_t number, uint8_t kind, int64_t offset)
{
  if (number < REGISTER_COUNT)
    row->registers[number] = (struct register_rule){offset, kind};
}

static void restore(struct machine *machine, uint64_t number)
{
  if (number < REGISTER_COUNT)
    machine->row.registers[number] = machine->initial.registers[number];
}

static void skip_block(const unsigned char **at)
{
  uint64_t size = take_uleb128(at);
  *at += size;
}

/* Runs instructions as long as their location is at or below PC.  */
static bool run(struct machine *machine, const unsigned char *at,
                const unsigned char *end, uint64_t pc)
{
  struct row *row = &machine->row;

  while (at < end && machine->location <= pc) {
    unsigned char code = *at++;
    uint64_t number;

    switch (code & 0xc0) {
    case DW_CFA_advance_loc:
      machine->location += (code & 0x3fu) * machine->code_alignment;
      continue;
    case DW_CFA_offset:
      set(row, code & 0x3f, KIND_OFFSET,
          (int64_t)take_uleb128(&at) * machine->data_alignment);
      continue;
    case DW_CFA_restore:
      restore(machine, code & 0x3f);
      continue;
    default:
      break;
    }
    switch (code) {
    case DW_CFA_nop:
      break;
    case DW_CFA_advance_loc1:
      machine->location += *at * machine->code_alignment;
      at += 1;
      break;
    case DW_CFA_advance_loc2:
      machine->location += (at[0] | at[1] << 8) * machine->code_alignment;
      at += 2;
      break;
    case DW_CFA_advance_loc4:
      machine->location += load_u32(at) * machine->code_alignment;
      at += 4;
      break;
    case DW_CFA_def_cfa:
      row->cfa_register = take_uleb128(&at);
      row->cfa_offset = (int64_t)take_uleb128(&at);
      row->cfa_is_expression = false;
      break;
    case DW_CFA_def_cfa_sf:
      row->cfa_register = take_uleb128(&at);
      row->cfa_offset = take_sleb128(&at) * machine->data_alignment;
      row->cfa_is_expression = false;
      break;
    case DW_CFA_def_cfa_register:
      row->cfa_register = take_uleb128(&at);
      row->cfa_is_expression = false;
      break;
    case DW_CFA_def_cfa_offset:
      row->cfa_offset = (int64_t)take_uleb128(&at);
      break;
    case DW_CFA_def_cfa_offset_sf:
      row->cfa_offset = take_sleb128(&at) * machine->data_alignment;
      break;
    case DW_CFA_def_cfa_expression:
      row->cfa_is_expression = true;
      skip_block(&at);
      break;
    case DW_CFA_remember_state:
      if (machine->depth == MAX_DEPTH)
        return false;
      machine->remembered[machine->depth++] = *row;
      break;
    case DW_CFA_restore_state:
      if (machine->depth == 0)
        return false;
      *row = machine->remembered[--machine->depth];
      break;
    case DW_CFA_offset_extended:
      number = take_uleb128(&at);
      set(row, number, KIND_OFFSET,
          (int64_t)take_uleb128(&at) * machine->data_alignment);
      break;
    case DW_CFA_offset_extended_sf:
      number = take_uleb128(&at);
      set(row, number, KIND_OFFSET,
          take_sleb128(&at) * machine->data_alignment);
      break;
    case DW_CFA_restore_extended:
      restore(machine, take_uleb128(&at));
      break;
    case DW_CFA_undefined:
      set(row, take_uleb128(&at), KIND_UNDEFINED, 0);
      break;
    case DW_CFA_same_value:
      set(row, take_uleb128(&at), KIND_SAME_VALUE, 0);
      break;
    case DW_CFA_register:
    case DW_CFA_val_offset:
    case DW_CFA_val_offset_sf:
      set(row, take_uleb128(&at), KIND_OTHER, 0);
      take_uleb128(&at);
      break;
    case DW_CFA_expression:
    case DW_CFA_val_expression:
      set(row, take_uleb128(&at), KIND_OTHER, 0);
      skip_block(&at);
      break;
    case DW_CFA_GNU_args_size:
      take_uleb128(&at);
      break;
    default:
      return false;
    }
  }
  return true;
}

static struct rule rule_of(const struct register_rule *from)
{
  switch (from->kind) {
  case KIND_OFFSET:
    return (struct rule){(int32_t)from->offset, BASE_CFA, RULE_LOADED};
  case KIND_OTHER:
    return (struct rule){0, 0, RULE_OTHER};
  default:
    return (struct rule){0, 0, RULE_UNCHANGED};
  }
}

bool run_cfi(const unsigned char *fde, uint64_t function, uint64_t pc,
             struct frame_rules *rules)
{
  struct machine machine;
  struct cie cie;
  const unsigned char *at;
  unsigned size;

  memset(rules, 0, sizeof *rules);
  memset(&machine.row, 0, sizeof machine.row);
  machine.depth = 0;
  machine.location = function;
  if (load_u32(fde) == 0xffffffff)
    return false;
  if (!read_cie(fde + 4 - load_u32(fde + 4), &cie, &machine))
    return false;
  size = pointer_size(cie.pointer_encoding);
  if (size == 0)
    return false;
  at = fde + 8 + 2 * (size_t)size;
  skip_block(&at);
  machine.initial = machine.row;
  if (!run(&machine, cie.instructions, cie.end, pc))
    return false;
  machine.initial = machine.row;
  if (!run(&machine, at, fde + 4 + load_u32(fde), pc))
    return false;

  if (machine.row.registers[REGISTER_RA].kind == KIND_UNDEFINED) {
    rules->is_outermost = true;
    return true;
  }
  if (machine.row.cfa_is_expression)
    rules->cfa = (struct rule){0, 0, RULE_OTHER};
  else
    rules->cfa = (struct rule){(int32_t)machine.row.cfa_offset,
                               (uint8_t)machine.row.cfa_register,
                               RULE_COMPUTED};
  rules->ra = rule_of(&machine.row.registers[REGISTER_RA]);
  rules->fp = rule_of(&machine.row.registers[REGISTER_FP]);
  return true;
}
