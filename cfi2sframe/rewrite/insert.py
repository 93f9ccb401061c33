# SPDX-License-Identifier: Apache-2.0
"""From a draft to the changes of bytes that carry it out.

Bytes behind the loaded part of the file (debug sections, symbols, names, the section headers) move to make
room for a new segment, so that the result is laid out as a linker would: loaded parts first. Nothing loaded
moves in the file.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHF_ALLOC
from cfi2sframe.elf.records import SECTION_HEADER_SIZE, SFRAME_NAME, SectionHeader
from cfi2sframe.rewrite.edits import Splice, ordered, overwrite
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.header_room import vacated_end
from cfi2sframe.rewrite.room import SECTION_ALIGNMENT
from cfi2sframe.rewrite.section_indices import changed_contents, renumbered_header, section_bytes

if TYPE_CHECKING:
    from cfi2sframe.rewrite.choose import Draft
    from cfi2sframe.rewrite.gate import Layout


class _Insertion(NamedTuple):
    file_offset: int
    size: int


def behind_alignment(layout: Layout, file_offset: int) -> int:
    """Return what bytes from `file_offset` on must move in multiples of: their largest alignment, at least 8."""
    alignments = [
        section.alignment
        for index, section in enumerate(layout.sections)
        if layout.has_content(index) and section.file_offset >= file_offset
    ]
    return max([8, *alignments])


def assemble(layout: Layout, draft: Draft, section_type: int) -> tuple[Splice, ...]:
    """Return the splices that put a section of `section_type` where `draft` says."""
    numbering = new_numbering(layout, draft)
    new_vaddrs = {index: vaddr for index, (vaddr, _) in draft.moved.items()}
    contents = changed_contents(layout, numbering, new_vaddrs)
    splices = [*_head(layout, draft, contents), *_contents_elsewhere(layout, draft, contents)]
    block_splices, insertions = _block(layout, draft, contents)
    splices += block_splices
    header = layout.header._replace(program_header_count=len(draft.segments))
    if draft.table_file_offset is not None:
        header = header._replace(program_headers_offset=draft.table_file_offset)
    if layout.sections:
        insertions += _table_growth(layout)
        names, name_offset, insertions = _names(layout, insertions)
        splices += names
        added = _section_header(draft, name_offset, section_type)
        table, header_offset = _section_table(layout, draft, insertions, added, names)
        splices.append(table)
        header = header._replace(
            section_headers_offset=header_offset,
            section_header_count=len(layout.sections) + 1,
            section_names_index=numbering[layout.names_index],
        )
    splices.append(overwrite(0, header.pack()))
    return ordered(splices)


def _section_header(draft: Draft, name_offset: int, section_type: int) -> SectionHeader:
    block = draft.block
    return SectionHeader(
        name_offset,
        section_type,
        SHF_ALLOC,
        block.vaddr_of(block.section_file_offset),
        block.section_file_offset,
        block.section_size,
        0,
        0,
        SECTION_ALIGNMENT,
        0,
    )


def _head(layout: Layout, draft: Draft, contents: dict[int, bytes]) -> list[Splice]:
    """Rebuild the program headers and, where sections gave way to them, all up to the first that stays."""
    if draft.table_file_offset is not None:
        return []
    start = layout.header.program_headers_offset
    table = b"".join(segment.pack(layout.order) for segment in draft.segments)
    if not draft.moved:
        return [overwrite(start, table.ljust(vacated_end(layout) - start, b"\0"))]
    head = bytearray(layout.data[start : draft.region.limit])
    head[: vacated_end(layout) - start] = bytes(vacated_end(layout) - start)
    for index in draft.moved:
        section = layout.sections[index]
        head[section.file_offset - start : section.file_offset - start + section.size] = bytes(section.size)
    head[: len(table)] = table
    for index in draft.region.movable:
        _, file_offset = draft.moved.get(index, (0, layout.sections[index].file_offset))
        if file_offset < draft.region.limit:
            content = _content(layout, contents, index)
            head[file_offset - start : file_offset - start + len(content)] = content
    return [overwrite(start, bytes(head))]


def _content(layout: Layout, contents: dict[int, bytes], index: int) -> bytes:
    return contents[index] if index in contents else section_bytes(layout, index)


def _contents_elsewhere(layout: Layout, draft: Draft, contents: dict[int, bytes]) -> list[Splice]:
    """Write the section that went into the slack of the first page, and the changed ones that stay in place."""
    splices = []
    for index in {*draft.moved, *contents}:
        _, file_offset = draft.moved.get(index, (0, layout.sections[index].file_offset))
        in_head = bool(draft.moved) and layout.header.program_headers_offset <= file_offset < draft.region.limit
        if index not in draft.block.placed and not in_head:
            splices.append(overwrite(file_offset, _content(layout, contents, index)))
    return splices


def _block(layout: Layout, draft: Draft, contents: dict[int, bytes]) -> tuple[list[Splice], list[_Insertion]]:
    """Write the block over slack, or insert it behind the loaded part of the file."""
    block = draft.block
    section_end = block.section_file_offset + block.section_size
    behind = bytearray(block.end - section_end)
    for index, file_offset in block.placed.items():
        start = file_offset - section_end
        behind[start : start + layout.sections[index].size] = _content(layout, contents, index)
    if block.load_index is not None:
        splices = [Splice(block.section_file_offset, block.section_size, None, block.section_size)]
        if behind:
            splices.append(overwrite(section_end, bytes(behind)))
        return splices, []
    place = layout.loaded_end
    growth = round_up(block.end - place, behind_alignment(layout, place))
    front = bytes(block.section_file_offset - place)
    if draft.table_file_offset is not None:
        table = b"".join(segment.pack(layout.order) for segment in draft.segments)
        front = (front[: draft.table_file_offset - place] + table).ljust(len(front), b"\0")
    return [
        Splice(place, 0, front),
        Splice(place, 0, None, block.section_size),
        Splice(place, 0, bytes(behind) + bytes(place + growth - block.end)),
    ], [_Insertion(place, growth)]


def _table_growth(layout: Layout) -> list[_Insertion]:
    """Return what one more section header pushes back; nothing when the table goes to the file's end."""
    start = layout.header.section_headers_offset
    if start < layout.loaded_end:
        return []
    end = start + SECTION_HEADER_SIZE * len(layout.sections)
    return [_Insertion(end, round_up(SECTION_HEADER_SIZE, behind_alignment(layout, end)))]


def _names(layout: Layout, insertions: list[_Insertion]) -> tuple[list[Splice], int, list[_Insertion]]:
    """Append the section's name to the names: the splices, the name's offset, the insertions so far."""
    strings = section_bytes(layout, layout.names_index)
    wanted = SFRAME_NAME.encode() + b"\0"
    found = strings.find(wanted)
    if found >= 0:
        return [], found, insertions
    table = layout.sections[layout.names_index]
    end = table.file_offset + table.size
    if table.file_offset < layout.loaded_end:
        # What follows the names in the file is loaded and stays: the names go to the end of the file.
        padding = -len(layout.data) % 8
        content = bytes(padding) + strings + wanted
        return (
            [Splice(len(layout.data), 0, content)],
            len(strings),
            [*insertions, _Insertion(len(layout.data), len(content))],
        )
    growth = round_up(len(wanted), behind_alignment(layout, end))
    return [Splice(end, 0, wanted.ljust(growth, b"\0"))], len(strings), [*insertions, _Insertion(end, growth)]


def new_numbering(layout: Layout, draft: Draft) -> list[int]:
    """Return the new index of each old section.

    The new section comes last, unless sections moved: then the table is in address order again. patchelf
    takes sections out of the way of growing program headers from index 1 on, up to the first that is not in
    the way.
    """
    count = len(layout.sections)
    if not draft.moved:
        return list(range(count))
    staying = [index for index in range(count) if index not in draft.moved]
    loaded = sorted(
        (layout.sections[i].vaddr, at) for at, i in enumerate(staying) if layout.sections[i].flags & SHF_ALLOC
    )
    vaddrs = [vaddr for vaddr, _ in loaded]
    # The last place of all that stay at lower addresses.
    lasts = list(accumulate((at for _, at in loaded), max))
    added = {index: vaddr for index, (vaddr, _) in draft.moved.items()}
    added[count] = draft.block.vaddr_of(draft.block.section_file_offset)
    after: dict[int, list[int]] = {}
    for index, vaddr in sorted(added.items(), key=lambda item: item[1]):
        lower = bisect_left(vaddrs, vaddr)
        after.setdefault(lasts[lower - 1] if lower else 0, []).append(index)
    order = [index for at, old in enumerate(staying) for index in (old, *after.get(at, ()))]
    numbering = [0] * count
    for new, old in enumerate(order):
        if old < count:
            numbering[old] = new
    return numbering


def _shift(layout: Layout, insertions: list[_Insertion], file_offset: int) -> int:
    if file_offset < layout.loaded_end:
        return file_offset
    return file_offset + sum(i.size for i in insertions if i.file_offset <= file_offset)


def _section_table(
    layout: Layout,
    draft: Draft,
    insertions: list[_Insertion],
    added: SectionHeader,
    names: list[Splice],
) -> tuple[Splice, int]:
    """Return the splice that writes the section headers, and where they are in the new file."""
    numbering = new_numbering(layout, draft)
    headers = [added] * (len(layout.sections) + 1)
    for index, old in enumerate(layout.sections):
        header = renumbered_header(old, numbering)
        if index in draft.moved:
            vaddr, file_offset = draft.moved[index]
            header = header._replace(vaddr=vaddr, file_offset=file_offset)
        elif not header.flags & SHF_ALLOC:
            header = header._replace(file_offset=_shift(layout, insertions, header.file_offset))
        if index == layout.names_index and names:
            header = _grown_names(layout, header, names[0], insertions)
        headers[numbering[index]] = header
    table = b"".join(header.pack(layout.order) for header in headers)
    old_start = layout.header.section_headers_offset
    if old_start >= layout.loaded_end:
        old_size = SECTION_HEADER_SIZE * len(layout.sections)
        growth = _table_growth(layout)[0].size
        content = table.ljust(old_size + growth, b"\0")
        return Splice(old_start, old_size, content), _shift(layout, insertions, old_start)
    end = len(layout.data) + sum(insertion.size for insertion in insertions)
    padding = bytes(-end % 8)
    return Splice(len(layout.data), 0, padding + table), end + len(padding)


def _grown_names(layout: Layout, header: SectionHeader, splice: Splice, insertions: list[_Insertion]) -> SectionHeader:
    size = header.size + len(SFRAME_NAME) + 1
    if splice.file_offset == len(layout.data) and layout.sections[layout.names_index].file_offset < layout.loaded_end:
        start = len(layout.data) + sum(i.size for i in insertions[:-1])
        return header._replace(file_offset=start + -len(layout.data) % 8, size=size)
    return header._replace(size=size)
