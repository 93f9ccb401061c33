# SPDX-License-Identifier: Apache-2.0
"""What dynamic relocations refer to: the addresses that they store, and where they store any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.abi import ARCHES
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.dynamic import packed_words
from cfi2sframe.elf.references import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.placing.gate import LinkedFile

_RELATIVE_TYPES: Final = frozenset(arch.relative_relocation for arch in ARCHES)


def relocated_addresses(file: LinkedFile, start_vaddr: int, end_vaddr: int) -> set[int]:
    """Return the addresses in a range that relative relocations store, and those at which any relocation stores."""
    found: set[int] = set()
    for index, section in enumerate(file.sections):
        if not section.flags & c.SHF_ALLOC or not section.is_stored or section.type not in (c.SHT_RELA, c.SHT_RELR):
            continue
        if section.type == c.SHT_RELR:
            packed = packed_words(words_of(file.section_bytes(index), file.order, 1))
            found.update(value for value in _stored_at(file, packed) if start_vaddr <= value < end_vaddr)
            continue
        words = words_of(file.section_bytes(index), file.order, 3)
        found.update(place for place in words[0::3] if start_vaddr <= place < end_vaddr)
        for number, addend in enumerate(words[2::3]):
            if start_vaddr <= addend < end_vaddr and words[3 * number + 1] & 0xFFFFFFFF in _RELATIVE_TYPES:
                found.add(addend)
    return found


def _stored_at(file: LinkedFile, packed: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield what the file has in the words that compact relocations name: the addends."""
    loads = [load for load in file.loads if load.flags & c.PF_W]
    words = [
        words_of(file.data[load.file_offset + -load.vaddr % 8 : load.file_span.end], file.order, 1) for load in loads
    ]
    for start, bitmap in packed:
        for load, stored in zip(loads, words, strict=True):
            first = (start - load.vaddr) // 8
            # The last word that the bitmap can name is the 63rd.
            for number in range(max(first, 0), min(first + bitmap.bit_length(), len(stored))):
                if bitmap >> (number - first) & 1:
                    yield stored[number]
