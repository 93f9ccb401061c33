# SPDX-License-Identifier: Apache-2.0
"""A reader of all versions and ABIs that takes docs/writing-a-reader.md literally, and imports nothing of the package.

Its comments quote the page.
"""

from typing import Literal, NamedTuple

#: Register, None for the CFA; offset; whether the value is loaded from the sum.
Rule = tuple[int | None, int, bool]
#: CFA; RA and FP, None where they are unchanged; whether the RA is signed.
Row = tuple[Rule | None, Rule | None, Rule | None, bool]
#: DWARF's numbers of FP and SP, by ABI.
_BASES = {1: (29, 31), 2: (29, 31), 3: (6, 7), 4: (11, 15)}
_SIZES = (1, 2, 4)


class Section(NamedTuple):
    """The bytes at an address: "numbers have the ABI's byte order; s marks signed ones"."""

    data: bytes
    order: Literal["little", "big"]
    address: int

    def get(self, at: int, size: int, sign: str = "") -> int:
        """Return a number."""
        return int.from_bytes(self.data[at : at + size], self.order, signed=sign == "s")


def find(section: Section, pc: int) -> Row | str | None:
    """Return the row for a PC; "outermost" where RA is undefined; None where nothing is found."""
    get, version = section.get, section.get(2, 1)
    tables = 28 + get(7, 1)
    width, record = {1: (4, 17), 2: (4, 20), 3: (8, 16)}[version]
    for field in range(tables + get(20, 4), tables + get(20, 4) + record * get(8, 4), record):
        # "a start counts from its own field (else from the section)"; "Addresses wrap at 2^64"
        origin = section.address + (field if get(3, 1) & 4 else 0)
        distance = (pc - origin - get(field, width, "s")) % (1 << 64)
        if distance < get(field + width, 4):
            break
    else:
        return None
    at = tables + get(24, 4) + get(field + width + 4, 4)
    if version == 3:
        count, info, is_flexible, block, at = get(at, 2), get(at + 2, 1), get(at + 3, 1) & 31, get(at + 4, 1), at + 5
    else:
        count, info, is_flexible, block = get(field + 12, 4), get(field + 16, 1), 0, get(field + 17, 1)
    row: Row | str | None = None if count or is_flexible else "outermost"
    size = _SIZES[info & 15]
    for _ in range(count):
        # "rows apply to the offset within a block"; version 1: "a row matches if `(pc & start) >= start`"
        start, found = get(at, size), distance
        if info & 16:
            found = pc & start if version == 1 else distance % block
        if found >= start:
            row = _meaning(section, at + size, is_flexible)
        at += size + 1 + (get(at + size, 1) >> 1 & 15) * _SIZES[get(at + size, 1) >> 5 & 3]
    return row


def _meaning(section: Section, at: int, is_flexible: int) -> Row | str:
    """Return what an info byte and its words mean."""
    get, is_s390x, info = section.get, section.get(4, 1) == 4, section.get(at, 1)
    size, at = _SIZES[info >> 5 & 3], at + 1
    end = at + size * (info >> 1 & 15)
    if at == end:
        return "outermost"
    rules: list[Rule | None] = []
    for place in (0, get(6, 1, "s"), get(5, 1, "s")):
        is_cfa = not rules
        # "RA or FP without a word is saved at its place in the header, in flexible rows too; without a place ..."
        rules.append((None, place, True) if place else None)
        if at == end or (place and not is_flexible):
            continue
        # As "each has a control word": of default rows, "the CFA is SP or FP + word; RA and FP are saved at CFA + word"
        control = _BASES[get(4, 1)][info & 1] << 3 | 1 if is_cfa else 2
        if is_flexible:
            control, at = get(at, size), at + size
            if control == 0:
                continue
        word, at = get(at, size, "s"), at + size
        if is_s390x and is_cfa:
            word = 8 * word + 160
        elif is_s390x and not is_flexible and word == 0:
            continue
        register: int | None = control >> 3 if control & 1 else None
        is_odd = is_s390x and not is_cfa and section.get(2, 1) == 2 and word & 1
        rules[-1] = (word >> 1, 0, False) if is_odd else (register, word, bool(control & 2))
    return rules[0], rules[1], rules[2], bool(info & 128)
