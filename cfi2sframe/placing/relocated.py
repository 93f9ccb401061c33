# SPDX-License-Identifier: Apache-2.0
"""What dynamic relocations refer to: the addresses that they store, and where they store any."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import ARCHES
from cfi2sframe.elf.constants import (
    PF_W,
    SHF_ALLOC,
    SHT_RELA,
    SHT_RELR,
)
from cfi2sframe.elf.dynamic import packed_words
from cfi2sframe.elf.headers import RELA_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.placing.gate import LinkedFile

_NATIVE_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_RELATIVE_TYPES: Final = frozenset(arch.relative_relocation for arch in ARCHES)
_WORD_SIZE: Final = 8


class _PackedWords(NamedTuple):
    """The words from `start_vaddr` on that an SHT_RELR entry relocates: one for each bit of `bitmap`, lowest first."""

    start_vaddr: int
    bitmap: int


def relocated_addresses(file: LinkedFile, start_vaddr: int, end_vaddr: int) -> set[int]:
    """Return the addresses in a range that relative relocations store, and those at which any relocation stores."""
    found: set[int] = set()
    for section in file.sections:
        if section.type != SHT_RELA or not section.flags & SHF_ALLOC or not section.is_stored:
            continue
        size = section.size - section.size % RELA_SIZE
        words = _words(file, section.file_offset, section.file_offset + size)
        found.update(place for place in words[0::3] if start_vaddr <= place < end_vaddr)
        for number, addend in enumerate(words[2::3]):
            if start_vaddr <= addend < end_vaddr and words[3 * number + 1] & 0xFFFFFFFF in _RELATIVE_TYPES:
                found.add(addend)
    if packed := sorted(_packed_words(file)):
        found.update(_stored_in_packed(file, packed, start_vaddr, end_vaddr))
    return found


def _words(file: LinkedFile, start: int, end: int) -> array[int]:
    words = array("Q", bytes(file.data[start:end]))
    if file.order != _NATIVE_ORDER:
        words.byteswap()
    return words


def _packed_words(file: LinkedFile) -> Iterator[_PackedWords]:
    """Yield what each entry of SHT_RELR sections describes: an address, or the bitmap of the words that follow."""
    for section in file.sections:
        if section.type != SHT_RELR or not section.flags & SHF_ALLOC or not section.is_stored:
            continue
        words = _words(file, section.file_offset, section.file_span.end - section.size % _WORD_SIZE)
        yield from map(_PackedWords._make, packed_words(words))


def _stored_in_packed(file: LinkedFile, packed: list[_PackedWords], start_vaddr: int, end_vaddr: int) -> Iterator[int]:
    """Yield the addresses in a range that words with a relocation of SHT_RELR hold: their value is the addend."""
    starts = [words.start_vaddr for words in packed]
    for load in file.loads:
        if not load.flags & PF_W:
            continue
        skipped = -load.vaddr % _WORD_SIZE
        size = max(load.file_size - skipped, 0) // _WORD_SIZE * _WORD_SIZE
        start = load.file_offset + skipped
        for number, value in enumerate(_words(file, start, start + size)):
            if start_vaddr <= value < end_vaddr:
                vaddr = load.vaddr + skipped + _WORD_SIZE * number
                words = packed[bisect_right(starts, vaddr) - 1]
                if words.start_vaddr <= vaddr and words.bitmap >> ((vaddr - words.start_vaddr) // _WORD_SIZE) & 1:
                    yield value
