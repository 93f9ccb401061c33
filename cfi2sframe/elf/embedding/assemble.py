# SPDX-License-Identifier: Apache-2.0
"""From a draft to the changes of bytes that carry it out.

Bytes behind the loaded part of the file (debug sections, symbols, names, the section headers) move to make room for
a new segment, so that the result is laid out as a linker would: loaded parts first. Nothing loaded moves in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHF_ALLOC, SHT_NOBITS, SHT_NULL, STB_LOCAL
from cfi2sframe.elf.embedding.layout import SFRAME_NAME, round_up
from cfi2sframe.elf.embedding.movable import TAG_OF_NAME, dynamic_entries, symbols_in
from cfi2sframe.elf.embedding.place import SECTION_ALIGNMENT
from cfi2sframe.elf.embedding.splice import Splice, ordered, overwrite
from cfi2sframe.elf.records import SECTION_HEADER_SIZE, SectionHeader

if TYPE_CHECKING:
    from cfi2sframe.elf.embedding.draft import Draft
    from cfi2sframe.elf.embedding.layout import Layout


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
    splices = [*_head(layout, draft), *_moved_contents(layout, draft)]
    block_splices, insertions = _block(layout, draft)
    splices += block_splices
    header = layout.header._replace(program_header_count=len(draft.segments))
    if layout.sections:
        insertions += _table_growth(layout)
        names, name_offset, insertions = _names(layout, insertions)
        splices += names
        added = _section_header(draft, name_offset, section_type)
        table, header_offset = _section_table(layout, draft, insertions, added, names)
        splices.append(table)
        header = header._replace(
            section_headers_offset=header_offset, section_header_count=len(layout.sections) + 1
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
        block.end - block.section_file_offset,
        0,
        0,
        SECTION_ALIGNMENT,
        0,
    )


def _head(layout: Layout, draft: Draft) -> list[Splice]:
    """Rebuild the program headers and, where sections gave way to them, all up to the first that stays."""
    start = layout.header.program_headers_offset
    table = b"".join(segment.pack(layout.order) for segment in draft.segments)
    if not draft.moved:
        return [overwrite(start, table.ljust(layout.table_end - start, b"\0"))]
    region = draft.region
    head = bytearray(layout.data[start : region.limit])
    for index in draft.moved:
        section = layout.sections[index]
        head[section.file_offset - start : section.file_offset - start + section.size] = bytes(section.size)
    head[: len(table)] = table
    for index, (_, file_offset) in draft.moved.items():
        section = layout.sections[index]
        if start <= file_offset < region.limit:
            head[file_offset - start : file_offset - start + section.size] = _content(layout, index)
    return [overwrite(start, bytes(head))]


def _content(layout: Layout, index: int) -> bytes:
    section = layout.sections[index]
    return bytes(layout.data[section.file_offset : section.file_offset + section.size])


def _moved_contents(layout: Layout, draft: Draft) -> list[Splice]:
    """Return the moved sections that went into slack, and what led to any moved section: tags and symbols."""
    splices = []
    for index, (_, file_offset) in draft.moved.items():
        if index not in draft.block.placed and file_offset >= draft.region.limit:
            splices.append(overwrite(file_offset, _content(layout, index)))
    return splices + follow(layout, {index: vaddr for index, (vaddr, _) in draft.moved.items()})


def follow(layout: Layout, new_vaddrs: dict[int, int]) -> list[Splice]:
    """Return the changes of dynamic tags and local symbols that lead to sections with a new address."""
    splices = []
    for index, vaddr in new_vaddrs.items():
        tag = TAG_OF_NAME.get(layout.names[index])
        for entry in dynamic_entries(layout):
            if entry.tag == tag and entry.value == layout.sections[index].vaddr:
                splices.append(overwrite(entry.value_file_offset, _word(layout, vaddr)))
    if new_vaddrs:
        for symbol in symbols_in(layout, frozenset(new_vaddrs)):
            if symbol.binding == STB_LOCAL:
                delta = new_vaddrs[symbol.section_index] - layout.sections[symbol.section_index].vaddr
                splices.append(overwrite(symbol.value_file_offset, _word(layout, symbol.value + delta)))
    return splices


def _word(layout: Layout, value: int) -> bytes:
    return value.to_bytes(8, "little" if layout.order == "<" else "big")


def _block(layout: Layout, draft: Draft) -> tuple[list[Splice], list[_Insertion]]:
    """Write the block over slack, or insert it behind the loaded part of the file."""
    block = draft.block
    before = bytearray(block.section_file_offset - block.file_offset)
    for index, file_offset in block.placed.items():
        start = file_offset - block.file_offset
        before[start : start + layout.sections[index].size] = _content(layout, index)
    size = block.end - block.section_file_offset
    if block.load_index is not None:
        splices = [Splice(block.section_file_offset, size, None, size)]
        if before:
            splices.append(overwrite(block.file_offset, bytes(before)))
        return splices, []
    place = layout.loaded_end
    pad = bytes(block.file_offset - place)
    growth = round_up(block.end - place, behind_alignment(layout, place))
    return [
        Splice(place, 0, pad + bytes(before)),
        Splice(place, 0, None, size),
        Splice(place, 0, bytes(place + growth - block.end)),
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
    strings = _content(layout, layout.names_index)
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
    headers = []
    for index, old in enumerate(layout.sections):
        header = old
        if index in draft.moved:
            vaddr, file_offset = draft.moved[index]
            header = header._replace(vaddr=vaddr, file_offset=file_offset)
        elif header.type not in (SHT_NULL, SHT_NOBITS) or not header.flags & SHF_ALLOC:
            header = header._replace(file_offset=_shift(layout, insertions, header.file_offset))
        if index == layout.names_index and names:
            header = _grown_names(layout, header, names[0], insertions)
        headers.append(header)
    table = b"".join(header.pack(layout.order) for header in [*headers, added])
    old_start = layout.header.section_headers_offset
    if old_start >= layout.loaded_end:
        old_size = SECTION_HEADER_SIZE * len(layout.sections)
        growth = _table_growth(layout)[0].size
        content = table.ljust(old_size + growth, b"\0")
        return Splice(old_start, old_size, content), _shift(layout, insertions, old_start)
    end = len(layout.data) + sum(insertion.size for insertion in insertions)
    padding = bytes(-end % 8)
    return Splice(len(layout.data), 0, padding + table), end + len(padding)


def _grown_names(
    layout: Layout, header: SectionHeader, splice: Splice, insertions: list[_Insertion]
) -> SectionHeader:
    size = header.size + len(SFRAME_NAME) + 1
    if splice.file_offset == len(layout.data) and layout.sections[layout.names_index].file_offset < layout.loaded_end:
        start = len(layout.data) + sum(i.size for i in insertions[:-1])
        return header._replace(file_offset=start + -len(layout.data) % 8, size=size)
    return header._replace(size=size)
