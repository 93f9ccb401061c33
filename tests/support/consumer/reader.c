/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of SFrame versions 2 and 3 in this machine's byte order, from the tables of docs/writing-a-reader.md alone.  */
#include <stdbool.h>
#include <stdint.h>

struct rule { bool is_given, from_register, load; uint32_t number; int64_t offset; };
struct row { bool outermost, signal, ra_signed; struct rule rules[3]; /* CFA, RA, FP */ };

enum { S390X = 4 };

static int64_t get(const uint8_t *at, int size, bool is_signed) {
  uint64_t value = 0;
  for (int i = 0; i < size; i++)
    value |= (uint64_t)at[__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? size - 1 - i : i] << 8 * i;
  return is_signed ? (int64_t)(value << (64 - 8 * size)) >> (64 - 8 * size) : (int64_t)value;
}

bool is_section(const uint8_t *s, uint64_t size) {
  return size >= 28 && get(s, 2, false) == 0xdee2 && (s[3] & 1) && (s[2] == 2 || (s[2] == 3 && (s[3] & 4)));
}

/* Find the row for a PC in a section at an address; sp and fp are DWARF's numbers of these registers.  */
bool find_row(const uint8_t *s, uint64_t size, uint64_t address, uint64_t pc, int sp, int fp, struct row *row) {
  if (!is_section(s, size))
    return false;
  bool is_2 = s[2] == 2;
  int record = is_2 ? 20 : 16, width = is_2 ? 4 : 8;
  uint64_t count = get(s + 8, 4, false), table = 28 + s[7] + get(s + 20, 4, false);
  uint64_t at = 28 + s[7] + get(s + 24, 4, false), end = at + get(s + 16, 4, false);
  if (table + record * count > size || end > size)
    return false;
  uint64_t low = 0, high = count, function = 0, start = 0;
  while (low < high) {
    uint64_t middle = (low + high) / 2, place = table + record * middle;
    uint64_t begin = address + (s[3] & 4 ? place : 0) + get(s + place, width, true);
    if (begin > pc)
      high = middle;
    else
      low = middle + 1, function = place, start = begin;
  }
  if (low == 0 || pc - start >= (uint64_t)get(s + function + width, 4, false))
    return false;
  at += get(s + function + width + 4, 4, false);
  /* Version 2 keeps in the function's record what version 3 has in its attribute: the number of rows, and bytes.  */
  uint64_t attribute = is_2 ? function + 16 : at + 2;
  if ((!is_2 && at + 5 > end) || (s[attribute] & 15) > 2 || (!is_2 && s[attribute + 1] > 1))
    return false;
  int rows = is_2 ? get(s + function + 12, 4, false) : get(s + at, 2, false);
  int start_size = 1 << (s[attribute] & 15), block = s[attribute + (is_2 ? 1 : 2)];
  bool is_flexible = !is_2 && s[attribute + 1], is_mask = s[attribute] & 16;
  if (is_mask && block == 0)
    return false;
  *row = (struct row){.outermost = !is_2 && rows == 0 && !is_flexible, .signal = !is_2 && s[attribute] >> 7};
  uint64_t delta = is_mask ? (pc - start) % block : pc - start, info = 0;
  for (at += is_2 ? 0 : 5; rows-- > 0 && at + start_size < end && (uint64_t)get(s + at, start_size, false) <= delta;) {
    info = at + start_size;
    at = info + 1 + ((s[info] >> 1 & 15) << (s[info] >> 5 & 3));
    if (at > end)
      return false;
  }
  if (info == 0)
    return row->outermost;
  int words = s[info] >> 1 & 15, word = 1 << (s[info] >> 5 & 3);
  row->ra_signed = s[info] >> 7;
  row->outermost = words == 0;
  at = info + 1;
  for (int i = 0; i < 3 && words > 0; i++) {
    int8_t fixed = i == 0 ? 0 : (int8_t)s[7 - i];
    if (fixed != 0)
      row->rules[i] = (struct rule){true, false, true, 0, fixed};
    if (at == info + 1 + words * word || (!is_flexible && fixed != 0))
      continue;
    uint64_t control = is_flexible ? get(s + at, word, false) : i == 0 ? (s[info] & 1 ? sp : fp) << 3 | 1 : 2;
    at += is_flexible ? word : 0;
    if (control == 0)
      continue;
    int64_t offset = get(s + at, word, true);
    at += word;
    if (s[4] == S390X && i == 0)
      offset = offset * 8 + 160;
    else if (s[4] == S390X && !is_flexible && offset == 0)
      continue;
    if (s[4] == S390X && is_2 && i > 0 && offset & 1)
      row->rules[i] = (struct rule){true, true, false, offset >> 1, 0};
    else
      row->rules[i] = (struct rule){true, control & 1, control >> 1 & 1, control >> 3, offset};
  }
  return true;
}
