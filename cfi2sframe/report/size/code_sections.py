# SPDX-License-Identifier: Apache-2.0
"""What each executable section has of a file's CFI and of its SFrame section."""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.report.size.records import CodeSection
from cfi2sframe.sframe.constants import FDE_SIZE

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.dwarf.programs import CfiEntry

#: What the FDEs of discarded code, and others outside of all sections, count for.
NO_SECTION = "(no section)"


def code_sections_of(conversion: Conversion) -> tuple[CodeSection, ...]:
    """Return what each section has, in the order of their names; the rest comes first, with the name ""."""
    image, plan = conversion.image, conversion.plan
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for entry in conversion.cfi.entries:
        sums = counts[_name_at(conversion, entry.fde.pc_begin_vaddr)]
        sums[0] += 1
        sums[1] += entry.fde.pc_range
        sums[2] += fde_size(entry, image.byte_order)
    # A stored body is that of the first function that refers to its offset.
    sizes = [len(body.data) for body in plan.bodies]
    unclaimed = dict(zip(accumulate(sizes, initial=0), sizes, strict=False))
    # In an object, the section's starts are those of the image's layout.
    for start, offset in zip(conversion.section.starts, plan.fre_offsets, strict=True):
        counts[_name_at(conversion, start)][3] += FDE_SIZE[plan.version] + unclaimed.pop(offset, 0)
    base = sum(section.size for section in conversion.cfi.sections)
    base += sum(section.size for section in image.sections_named(".eh_frame_hdr"))
    sections = [CodeSection(name, *sums) for name, sums in sorted(counts.items())]
    cfi_rest = base - sum(section.cfi_size for section in sections)
    sframe_rest = len(conversion.data) - sum(section.sframe_size for section in sections)
    return (CodeSection("", 0, 0, cfi_rest, sframe_rest), *sections)


def _name_at(conversion: Conversion, vaddr: int) -> str:
    section = conversion.image.section_at(vaddr)
    return NO_SECTION if section is None else section.name


def fde_size(entry: CfiEntry, byte_order: str) -> int:
    """Return the bytes of an FDE with its length field (DWARF 5, 7.2.2); 0 for what is no FDE in the file."""
    if isinstance(entry.section, RowSection):
        return 0
    data, offset = entry.section.data, entry.fde.offset
    length: int = struct.unpack_from(byte_order + "I", data, offset)[0]
    if length != 0xFFFFFFFF:
        return 4 + length
    long_length: int = struct.unpack_from(byte_order + "Q", data, offset + 4)[0]
    return 12 + long_length
