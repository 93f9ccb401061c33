# SPDX-License-Identifier: Apache-2.0
"""Turn a draft into edits.

What is loaded keeps its file offset, except for the sections that the draft moves. What follows the loaded part (debug
sections, symbols, names, the section headers) moves to make room for a new segment: the result is laid out as by a
linker, with the loaded part first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import SHF_ALLOC
from cfi2sframe.elf.headers import SectionHeader
from cfi2sframe.rewrite.edits import Splice, ordered, overwrite
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.header_room import vacated_end
from cfi2sframe.rewrite.room import SECTION_ALIGNMENT
from cfi2sframe.rewrite.section_indices import changed_contents, numbering_with
from cfi2sframe.rewrite.section_table import Insertion, with_section_header

if TYPE_CHECKING:
    from cfi2sframe.rewrite.choose import Draft
    from cfi2sframe.rewrite.gate import LinkedFile


def insertion_splices(file: LinkedFile, draft: Draft, section_type: int) -> tuple[Splice, ...]:
    """Return the splices that insert a section of `section_type` as `draft` describes.

    Raises `EmbedError` when section indices or symbols cannot be updated.
    """
    new_vaddrs = {index: place.vaddr for index, place in draft.moved.items()}
    numbering = numbering_with(file, new_vaddrs, draft.block.section_vaddr)
    contents = changed_contents(file, numbering, new_vaddrs)
    splices = [*_head(file, draft, contents), *_contents_elsewhere(file, draft, contents)]
    block_splices, insertions = _block(file, draft, contents)
    splices += block_splices
    header = file.header._replace(program_header_count=len(draft.segments))
    if draft.table_file_offset is not None:
        header = header._replace(program_headers_offset=draft.table_file_offset)
    if file.sections:
        added = _section_header(draft, section_type)
        table_splices, header = with_section_header(file, header, added, draft.moved, numbering, insertions)
        splices += table_splices
    splices.append(overwrite(0, header.pack()))
    return ordered(splices)


def _section_header(draft: Draft, section_type: int) -> SectionHeader:
    """Return the header of the new section, without its name."""
    block = draft.block
    return SectionHeader(
        name_offset=0,
        type=section_type,
        flags=SHF_ALLOC,
        vaddr=block.section_vaddr,
        file_offset=block.section_file_offset,
        size=block.section_size,
        link=0,
        info=0,
        alignment=SECTION_ALIGNMENT,
        entry_size=0,
    )


def _head(file: LinkedFile, draft: Draft, contents: dict[int, bytes]) -> list[Splice]:
    """Return the splice for the program headers and, where sections move, for all bytes before those that cannot."""
    if draft.table_file_offset is not None:
        return []
    start = file.header.program_headers_offset
    table = b"".join(segment.pack(file.order) for segment in draft.segments)
    vacated_size = vacated_end(file) - start
    if not draft.moved:
        return [overwrite(start, table.ljust(vacated_size, b"\0"))]
    head = bytearray(file.data[start : draft.region.limit])
    head[:vacated_size] = bytes(vacated_size)
    for index in draft.moved:
        old_start, old_end = file.sections[index].file_span
        head[old_start - start : old_end - start] = bytes(old_end - old_start)
    head[: len(table)] = table
    for index in draft.region.movable:
        file_offset = draft.file_offset_of(index, file)
        if file_offset < draft.region.limit:
            content = _content(file, contents, index)
            head[file_offset - start : file_offset - start + len(content)] = content
    return [overwrite(start, bytes(head))]


def _content(file: LinkedFile, contents: dict[int, bytes], index: int) -> bytes:
    return contents[index] if index in contents else file.section_bytes(index)


def _contents_elsewhere(file: LinkedFile, draft: Draft, contents: dict[int, bytes]) -> list[Splice]:
    """Return the splices for the section that moves into the slack of the first page, and for changed sections."""
    splices = []
    for index in {*draft.moved, *contents}:
        file_offset = draft.file_offset_of(index, file)
        in_head = bool(draft.moved) and file.header.program_headers_offset <= file_offset < draft.region.limit
        if index not in draft.block.placed and not in_head:
            splices.append(overwrite(file_offset, _content(file, contents, index)))
    return splices


def _block(file: LinkedFile, draft: Draft, contents: dict[int, bytes]) -> tuple[list[Splice], list[Insertion]]:
    """Return the splices that write the block over slack, or insert it after the loaded part of the file."""
    block = draft.block
    section_end = block.section_file_offset + block.section_size
    moved = bytearray(block.end - section_end)
    for index, file_offset in block.placed.items():
        start = file_offset - section_end
        moved[start : start + file.sections[index].size] = _content(file, contents, index)
    if block.load_index is not None:
        splices = [Splice(block.section_file_offset, block.section_size, None, block.section_size)]
        if moved:
            splices.append(overwrite(section_end, bytes(moved)))
        return splices, []
    start = file.loaded_end
    growth = round_up(block.end - start, file.alignment_from(start))
    before = bytes(block.section_file_offset - start)
    if draft.table_file_offset is not None:
        table = b"".join(segment.pack(file.order) for segment in draft.segments)
        before = (before[: draft.table_file_offset - start] + table).ljust(len(before), b"\0")
    return [
        Splice(start, 0, before),
        Splice(start, 0, None, block.section_size),
        Splice(start, 0, bytes(moved) + bytes(start + growth - block.end)),
    ], [Insertion(start, growth)]
