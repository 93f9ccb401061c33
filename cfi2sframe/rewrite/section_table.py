# SPDX-License-Identifier: Apache-2.0
"""Take one header out of the section table: later indices count down wherever the file mentions them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import (
    SHF_ALLOC,
)
from cfi2sframe.elf.records import SECTION_HEADER_SIZE, SFRAME_NAME
from cfi2sframe.rewrite.edits import Splice
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.insert import behind_alignment
from cfi2sframe.rewrite.section_indices import renumbered_header

if TYPE_CHECKING:
    from cfi2sframe.elf.records import FileHeader, SectionHeader
    from cfi2sframe.rewrite.gate import Layout


def without_section_header(
    layout: Layout,
    header: FileHeader,
    removed: int | None,
    moved: dict[int, tuple[int, int]],
    numbering: list[int],
    cuts: list[Splice],
    splices: list[Splice],
) -> tuple[list[Splice], FileHeader]:
    """Return all splices with those of the section table, symbols and names added, and the new ELF header.

    `removed` is the index that goes, None for a file whose section has no header; `moved` maps indices to
    new (address, file offset), `numbering` old indices to new ones; `cuts` are removals in the file before;
    `splices` the other changes so far.
    """
    names_cut = _names_cut(layout, removed)
    table = layout.header.section_headers_offset
    table_end = table + SECTION_HEADER_SIZE * len(layout.sections)
    cuts = [*cuts, *names_cut]
    shrink = 0
    if removed is not None and table >= layout.loaded_end:
        shrink = round_up(SECTION_HEADER_SIZE, behind_alignment(layout, table_end))
        cuts.append(Splice(table_end, shrink, b""))
    headers: dict[int, SectionHeader] = {}
    for index, old in enumerate(layout.sections):
        if index == removed:
            continue
        entry = old
        if index in moved:
            entry = entry._replace(vaddr=moved[index][0], file_offset=moved[index][1])
        elif not entry.flags & SHF_ALLOC:
            entry = entry._replace(file_offset=_pulled(cuts, entry.file_offset))
        if index == layout.names_index and names_cut:
            entry = entry._replace(size=entry.size - len(SFRAME_NAME) - 1)
        headers[numbering[index]] = renumbered_header(entry, numbering)
    content = b"".join(headers[number].pack(layout.order) for number in sorted(headers))
    result = [*splices, *names_cut]
    size = SECTION_HEADER_SIZE * len(layout.sections)
    result.append(Splice(table, size, content.ljust(size - shrink, b"\0")))
    return result, header._replace(
        section_headers_offset=_pulled(cuts, table),
        section_header_count=len(headers),
        section_names_index=numbering[layout.names_index],
    )


def _pulled(cuts: list[Splice], file_offset: int) -> int:
    return file_offset - sum(cut.removed_size for cut in cuts if cut.file_offset < file_offset)


def _names_cut(layout: Layout, removed: int | None) -> list[Splice]:
    """Drop the name when it is the last one of the table, unused by others, and what follows can move up."""
    if removed is None:
        return []
    table = layout.sections[layout.names_index]
    end = table.file_offset + table.size
    name = SFRAME_NAME.encode() + b"\0"
    start = end - len(name)
    strings = bytes(layout.data[table.file_offset : end])
    users = [i for i, s in enumerate(layout.sections) if s.name_offset >= table.size - len(name) and i != removed]
    if not strings.endswith(b"\0" + name) or users or table.file_offset < layout.loaded_end:
        return []
    growth = round_up(len(name), behind_alignment(layout, end))
    starts = [s.file_offset for i, s in enumerate(layout.sections) if layout.has_content(i)]
    starts.append(layout.header.section_headers_offset)
    behind = min((place for place in starts if place >= end), default=len(layout.data))
    if start + growth > behind:
        return []
    return [Splice(start, growth, b"")]
