/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of SFrame version 3 for little-endian ABIs, from the tables of docs/writing-a-reader.md alone.  */
#include <stdbool.h>
#include <stdint.h>

struct rule { bool is_given, from_register, load; uint32_t number; int64_t offset; };
struct row { bool outermost, signal, ra_signed; struct rule rules[3]; /* CFA, RA, FP */ };

static int64_t get(const uint8_t *at, int size, bool is_signed) {
  uint64_t value = 0;
  for (int i = 0; i < size; i++)
    value |= (uint64_t)at[i] << 8 * i;
  return is_signed ? (int64_t)(value << (64 - 8 * size)) >> (64 - 8 * size) : (int64_t)value;
}

/* Find the row for a PC in a section at an address; sp and fp are DWARF's numbers of these registers.  */
bool find_row(const uint8_t *s, uint64_t size, uint64_t address, uint64_t pc, int sp, int fp, struct row *row) {
  if (size < 28 || get(s, 2, false) != 0xdee2 || s[2] != 3 || (s[3] & 5) != 5)
    return false;
  uint64_t count = get(s + 8, 4, false), table = 28 + s[7] + get(s + 20, 4, false);
  uint64_t at = 28 + s[7] + get(s + 24, 4, false), end = at + get(s + 16, 4, false);
  if (table + 16 * count > size || end > size)
    return false;
  uint64_t low = 0, high = count, function = 0, start = 0;
  while (low < high) {
    uint64_t middle = (low + high) / 2, place = table + 16 * middle;
    uint64_t begin = address + place + get(s + place, 8, true);
    if (begin > pc)
      high = middle;
    else
      low = middle + 1, function = place, start = begin;
  }
  if (low == 0 || pc - start >= (uint64_t)get(s + function + 8, 4, false))
    return false;
  at += get(s + function + 12, 4, false);
  if (at + 5 > end || s[at + 3] > 1 || (s[at + 2] & 15) > 2)
    return false;
  int rows = get(s + at, 2, false), start_size = 1 << (s[at + 2] & 15), block = s[at + 4];
  bool is_flexible = s[at + 3], is_mask = s[at + 2] & 16;
  if (is_mask && block == 0)
    return false;
  *row = (struct row){.outermost = rows == 0 && !is_flexible, .signal = s[at + 2] >> 7};
  uint64_t delta = is_mask ? (pc - start) % block : pc - start, info = 0;
  for (at += 5; rows-- > 0 && at + start_size < end && (uint64_t)get(s + at, start_size, false) <= delta;) {
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
    row->rules[i] = (struct rule){true, control & 1, control >> 1 & 1, control >> 3, get(s + at, word, true)};
    at += word;
  }
  return true;
}
