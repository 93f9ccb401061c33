# SPDX-License-Identifier: Apache-2.0
"""The addresses of an object's sections, and the ranges of addresses that hold instructions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import ElfSection, ProgramHeader
from cfi2sframe.errors import ElfError
from cfi2sframe.range_map import ADDRESS_END

#: The address of an object's first allocated section.
_FIRST_VADDR = 0x10000
#: Bytes between an object's sections: the end of one must not be the start of the next.
_GAP_SIZE = 64


class CodeRange(NamedTuple):
    """A range of addresses that holds instructions: an executable section, or segment where there are no sections."""

    name: str
    section_index: int
    start_vaddr: int
    end_vaddr: int


def assigned_vaddrs(sections: Sequence[ElfSection]) -> list[int]:
    """Return addresses for an object's sections: ascending for those that are allocated, 0 for others.

    Raises `ElfError` when the sections are larger than the address space.
    """
    vaddrs = [0] * len(sections)
    cursor = _FIRST_VADDR
    # SFrame sections come last: the others then have the same addresses with and without them.
    for section in sorted(sections, key=lambda section: section.is_sframe):
        if section.flags & c.SHF_ALLOC:
            alignment = max(1, section.alignment)
            vaddrs[section.index] = cursor = (cursor + alignment - 1) // alignment * alignment
            cursor += section.size + _GAP_SIZE
            if cursor > ADDRESS_END:
                raise ElfError("the sections need more addresses than there are")
    return vaddrs


def code_ranges(
    sections: Iterable[ElfSection], segments: Iterable[ProgramHeader], *, is_relocatable: bool
) -> tuple[CodeRange, ...]:
    """Return the ranges of addresses that hold instructions, ascending and without overlaps.

    If a linked file has no section with instructions, these are its executable segments.
    """
    ranges = [CodeRange(s.name, s.index, s.vaddr, s.end_vaddr) for s in sections if s.is_code and s.size]
    if not ranges and not is_relocatable:
        ranges = [
            CodeRange(f"segment {index}", 0, *p.stored_vaddrs)
            for index, p in enumerate(segments)
            if p.type == c.PT_LOAD and p.flags & c.PF_X
        ]
    ranges.sort(key=lambda r: r.start_vaddr)
    return tuple(_without_overlap(ranges))


def _without_overlap(ranges: Iterable[CodeRange]) -> Iterator[CodeRange]:
    """Yield ranges without overlaps: an address belongs to the range that starts last."""
    open_ranges: list[CodeRange] = []
    position = 0
    for current in ranges:
        while open_ranges and open_ranges[-1].end_vaddr <= current.start_vaddr:
            last = open_ranges.pop()
            if position < last.end_vaddr:
                yield last._replace(start_vaddr=position)
                position = last.end_vaddr
        if open_ranges and position < current.start_vaddr:
            yield open_ranges[-1]._replace(start_vaddr=position, end_vaddr=current.start_vaddr)
        open_ranges.append(current)
        position = current.start_vaddr
    for last in reversed(open_ranges):
        if position < last.end_vaddr:
            yield last._replace(start_vaddr=position)
            position = last.end_vaddr
