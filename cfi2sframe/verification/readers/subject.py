# SPDX-License-Identifier: Apache-2.0
"""A section as readers meet it: decoded, and in its file if it is there already."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.sframe.read import Stored, Words

#: The bytes before a return address that are looked at: no call is longer.
_CALL_SIZE: Final = 7


class StoredRows(NamedTuple):
    """Rows as columns: their starts, and how the rest is stored."""

    starts: tuple[int, ...]
    tails: tuple[Words, ...]


class StoredFunction(NamedTuple):
    """A function with what is stored of it."""

    start_vaddr: int
    size: int
    fre_offset: int
    is_pcmask: bool
    repeat_size: int
    is_flexible: bool
    row_list: StoredRows

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.row_list.starts)


def stored_functions(section: Section, stored: Stored) -> Iterator[StoredFunction]:
    """Yield the functions of a section; equal row lists are one object."""
    lists = {
        record: StoredRows(body.starts, tuple(stored.words_of(record)))
        for body, record in dict.fromkeys(zip(section.bodies, stored.records, strict=True))
    }
    for start, size, record in zip(section.starts, section.sizes, stored.records, strict=True):
        is_pcmask, block = record.is_pcmask, record.repeat_size
        yield StoredFunction(start, size, record.fre_offset, is_pcmask, block, record.is_flexible, lists[record])


class Subject(NamedTuple):
    """A section that was read, with its `functions` as records, and the file it describes.

    `is_in_file`: the section is the one that the file has.
    """

    section: Section
    stored: Stored
    image: ElfImage
    is_in_file: bool
    functions: tuple[StoredFunction, ...]

    @property
    def table_size(self) -> int:
        """Bytes of the function table."""
        header = self.stored.header
        return header.fde_count * s.FDE_SIZE[header.version]


class Control(NamedTuple):
    """A rule of a flexible row as stored: the control word (unsigned), for `entity` (0 CFA, 1 RA, 2 FP)."""

    entity: int
    word: int

    @property
    def register(self) -> int | None:
        """The DWARF register that the rule starts from; None: the CFA."""
        return self.word >> s.FLEX_REG_SHIFT if self.word & s.FLEX_REG_P else None


def controls_of(tail: Words) -> Iterator[Control]:
    """Yield the control words of a flexible row's tail; none for a padding word."""
    mask = (1 << 8 * tail.word_size) - 1
    position = entity = 0
    while position < len(tail.words):
        word = tail.words[position] & mask
        if word:
            yield Control(entity, word)
        position += 2 if word else 1
        entity += 1


def uncovered_ends(subject: Subject) -> int:
    """Return how many functions end in what may be a call, at an address that no function holds.

    A reader that looks the return address itself up, and not the byte before it, finds no row there.
    """
    functions = sorted(subject.functions, key=lambda function: function.start_vaddr)
    starts = [function.start_vaddr for function in functions]
    found = 0
    for function in functions:
        end = function.start_vaddr + function.size
        index = bisect_right(starts, end) - 1
        holder = functions[index]
        if end < holder.start_vaddr + holder.size or function.is_pcmask:
            continue
        found += _may_end_in_call(subject.image, end, min(function.size, _CALL_SIZE))
    return found


def _may_end_in_call(image: ElfImage, end_vaddr: int, size: int) -> bool:
    code = image.bytes_at(end_vaddr - size, size)
    if code is None:
        return False
    tail = bytes(_CALL_SIZE - size) + code
    machine, order = image.arch.elf_machine, image.arch.byte_order
    if machine == EM_X86_64:
        return _is_amd64_call(tail)
    if machine == EM_AARCH64:
        # BL, BLR and its forms with authentication; instructions are little-endian always.
        word = int.from_bytes(tail[-4:], "little")
        return word >> 26 == 0b100101 or word & 0xFEFFF000 == 0xD63F0000
    if machine == EM_S390 and order == ">":
        # BRASL, BRAS, BASR that save the return address in r14.
        return tail[-6:-4] == b"\xc0\xe5" or tail[-4:-2] == b"\xa7\xe5" or (tail[-2] == 0x0D and tail[-1] >> 4 == 14)
    return False


def _is_amd64_call(tail: bytes) -> bool:
    """Whether the bytes end in E8 rel32, or FF /2 with any addressing."""
    if tail[-5] == 0xE8:
        return True
    for size in range(2, _CALL_SIZE + 1):
        if tail[-size] != 0xFF or tail[1 - size] >> 3 & 7 != 2:
            continue
        mode, base = tail[1 - size] >> 6, tail[1 - size] & 7
        with_index = mode != 3 and base == 4
        displacement = {0: 4 if base == 5 else 0, 1: 1, 2: 4, 3: 0}[mode]
        if with_index and mode == 0 and size > 2 and tail[2 - size] & 7 == 5:
            displacement = 4
        if size == 2 + with_index + displacement:
            return True
    return False
