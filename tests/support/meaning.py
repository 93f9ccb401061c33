# SPDX-License-Identifier: Apache-2.0
"""What two decoded sections say, address by address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe import convert
from cfi2sframe.elf.ranges import SpanCount
from cfi2sframe.sframe.model import OUTERMOST

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FrameState, Section


NO_FUNCTION: Final = "no function"


def differences_in_meaning(theirs: Section, ours: Section, image: ElfImage) -> list[str]:
    """Describe each address at which an assembler's section and ours, of an image, say different things.

    An assembler says nothing of padding, nor of functions that can be described in part only.
    """
    fdes = [entry.fde for entry, _ in convert(image, ours.version).in_parts]
    in_parts = [(fde.pc_begin_vaddr, fde.pc_begin_vaddr + fde.pc_range) for fde in fdes]
    padding = SpanCount(convert(image).code_map.padding)
    their_lookup, our_lookup = theirs, ours
    problems = []
    for pc in sorted(_points(theirs) | _points(ours)):
        said, meant = _state_at(their_lookup, pc), _state_at(our_lookup, pc)
        is_known = said == NO_FUNCTION and any(start <= pc < end for start, end in in_parts)
        if said != meant and not is_known and not (said == NO_FUNCTION and padding.between(pc, pc + 1)):
            problems.append(f"0x{pc:x}: {said} with the assembler's sections, {meant} with ours")
    return problems


def _state_at(lookup: Section, pc: int) -> FrameState | str:
    found = lookup.find(pc)
    if found is None:
        return NO_FUNCTION
    if not found.function.rows:
        return OUTERMOST
    return found.row.state if found.row else "no row"


def _points(section: Section) -> set[int]:
    """Every address at which the row in force changes; blocks of stubs are looked at one by one."""
    points = set()
    for function in section.functions:
        start, end = function.start_vaddr, function.start_vaddr + function.size
        points |= {start, end}
        for block in range(start, end, function.body.repeat_size or function.size or 1):
            points |= {block + row.start_delta for row in function.rows}
    return points
