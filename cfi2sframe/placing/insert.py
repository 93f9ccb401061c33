# SPDX-License-Identifier: Apache-2.0
"""Turn a placement into edits.

What is loaded keeps its file offset, except for the sections that the placement moves. What follows the loaded part
(debug sections, symbols) moves to make room for a new segment: the loaded part comes first, as linkers have it. New
section names, the undo record and the new section headers follow at the end of the file. The old ones go, if they end
it; else they stay, unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHF_ALLOC
from cfi2sframe.elf.contents import is_zero
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.ranges import Span
from cfi2sframe.placing.edits import Splice, ordered, overwrite
from cfi2sframe.placing.gate import round_up
from cfi2sframe.placing.place import SECTION_ALIGNMENT
from cfi2sframe.placing.remove import NAME
from cfi2sframe.placing.section_indices import changed_contents, numbering_with, renumbered_header
from cfi2sframe.placing.undo import OldPlace, Undo

if TYPE_CHECKING:
    from cfi2sframe.placing.gate import LinkedFile
    from cfi2sframe.placing.place import Placement


def insertion_splices(
    file: LinkedFile, placement: Placement, section_type: int, old: tuple[tuple[int, bytes], ...]
) -> tuple[Splice, ...]:
    """Return the splices that insert a section of `section_type` as `placement` says.

    `old` is for the undo record: file offsets and bytes of a section that was there.
    Raises `EmbedError` when section indices or symbols cannot be updated.
    """
    new_vaddrs = {index: place.vaddr for index, place in placement.moved.items()}
    numbering = numbering_with(file, new_vaddrs, placement.section_vaddr)
    changed = changed_contents(file, numbering, new_vaddrs)
    moved = {index: changed.get(index) or file.section_bytes(index) for index in placement.moved}
    table = b"".join(segment.pack(file.order) for segment in placement.segments)
    header = file.header._replace(program_header_count=len(placement.segments))
    splices = [
        overwrite(file.sections[index].file_offset, content)
        for index, content in changed.items()
        if index not in placement.moved
    ]
    old_head = b""
    if placement.table_file_offset is None:
        new_head, old_head = _head(file, placement, table, moved)
        splices.append(new_head)
    else:
        header = header._replace(program_headers_offset=placement.table_file_offset)
    block, growth = _block(file, placement, table, moved)
    splices += block
    if file.sections:
        names = _names(file)
        undo = _undo(file, placement, numbering, old_head, names, growth)._replace(old=old)
        end, table_size = _end_of_file(file, placement, section_type, names, undo)
        splices.append(Splice(names.kept_size, len(file.data) - names.kept_size, end))
        header = header._replace(
            section_headers_offset=names.kept_size + growth + len(end) - table_size,
            section_header_count=len(numbering) + 1,
            section_names_index=numbering[file.names_index],
        )
    return ordered([*splices, overwrite(0, header.pack())])


def _block(file: LinkedFile, placement: Placement, table: bytes, moved: dict[int, bytes]) -> tuple[list[Splice], int]:
    """Return the splices for the section and what moves there, and how far what is not loaded moves."""
    block, size = placement.block, placement.section_size
    section_end = block.section_file_offset + size
    after = bytearray(block.end - section_end)
    for index, at in block.placed.items():
        after[at - section_end : at - section_end + len(moved[index])] = moved[index]
    if not block.is_inserted:
        return [Splice(block.section_file_offset, size, None, size), overwrite(section_end, bytes(after))], 0
    at = file.loaded_end
    before = bytearray(block.section_file_offset - at)
    if placement.table_file_offset is not None:
        before[placement.table_file_offset - at :] = table
    growth = round_up(block.end - at, file.alignment_from(at))
    after += bytes(at + growth - block.end)
    return [Splice(at, 0, bytes(before)), Splice(at, 0, None, size), Splice(at, 0, bytes(after))], growth


def _head(file: LinkedFile, placement: Placement, table: bytes, moved: dict[int, bytes]) -> tuple[Splice, bytes]:
    """Return the splice for the program headers and what has moved from there or is near them, and what to keep.

    Zeros are left where sections were. To be kept is what was in the place of anything that is new.
    """
    start = file.header.program_headers_offset
    old_table_size = file.table_end - start
    staying = {i: placement.moved[i].file_offset for i in moved if i not in placement.block.placed}
    changed_end = max([start + max(len(table), old_table_size), *(at + len(moved[i]) for i, at in staying.items())])
    olds = [file.sections[index].file_span for index in moved]
    head = bytearray(file.data[start : max([changed_end, *(old.end for old in olds)])])
    saved = bytes(head[: changed_end - start])
    for old in olds:
        head[old.start - start : old.end - start] = bytes(old.end - old.start)
    head[: max(len(table), old_table_size)] = table.ljust(old_table_size, b"\0")
    for index, at in staying.items():
        head[at - start : at - start + len(moved[index])] = moved[index]
    return overwrite(start, bytes(head)), saved


class _Names(NamedTuple):
    """The section names with that of the section, and its offset there; empty where the old ones have it already.

    `kept_size` is up to where the file stays: without its section headers and, before these, its section names, where
    they end the file and are written anew.
    """

    content: bytes
    name_offset: int
    kept_size: int


def _names(file: LinkedFile) -> _Names:
    names, table, kept = file.section_bytes(file.names_index), file.section_table, len(file.data)
    name_offset = names.find(NAME)
    content = b"" if name_offset >= 0 else names + NAME
    if table.end == kept and table.start >= file.loaded_end:
        kept, last = table.start, file.stored[-1]
        is_last = last.number == file.names_index and last.start >= file.loaded_end
        if content and is_last and is_zero(file.data, Span(last.end, table.start)):
            kept = last.start
    return _Names(content, name_offset if name_offset >= 0 else len(names), kept)


def _undo(
    file: LinkedFile, placement: Placement, numbering: list[int], old_head: bytes, names: _Names, growth: int
) -> Undo:
    block = placement.block
    return Undo(
        header=file.header.pack(),
        head=old_head,
        numbering=tuple(numbering),
        places=tuple(OldPlace(i, file.sections[i].vaddr, file.sections[i].file_offset) for i in placement.moved),
        is_inserted=block.is_inserted,
        file_size=len(file.data),
        kept_size=names.kept_size,
        names_file_offset=file.sections[file.names_index].file_offset if names.content else 0,
        added_start=file.loaded_end if block.is_inserted else block.section_file_offset,
        added_size=growth or block.end - block.section_file_offset,
    )


def _end_of_file(
    file: LinkedFile, placement: Placement, section_type: int, names: _Names, undo: Undo
) -> tuple[bytes, int]:
    """Return the new end of the file, and how many bytes of it are section headers."""
    growth = undo.added_size if undo.is_inserted else 0
    start = undo.kept_size + growth
    end = bytearray(-start % 8)
    names_place = start + len(end)
    end += names.content
    added = ElfSection(
        name_offset=names.name_offset,
        type=section_type,
        flags=SHF_ALLOC,
        vaddr=placement.section_vaddr,
        file_offset=placement.block.section_file_offset,
        size=placement.section_size,
        link=0,
        info=0,
        alignment=SECTION_ALIGNMENT,
        entry_size=0,
    )
    # The new header has the one index that is in no item of `numbering`.
    headers = [added] * (len(file.sections) + 1)
    numbering = list(undo.numbering)
    for index, old in enumerate(file.sections):
        entry = renumbered_header(old, numbering)
        if index in placement.moved:
            entry = entry._replace(vaddr=placement.moved[index].vaddr, file_offset=placement.moved[index].file_offset)
        elif not entry.flags & SHF_ALLOC and entry.file_offset >= file.loaded_end:
            entry = entry._replace(file_offset=entry.file_offset + growth)
        if index == file.names_index and names.content:
            entry = entry._replace(file_offset=names_place, size=len(names.content))
        headers[numbering[index]] = entry
    record = undo.pack()
    end += bytes(-(start + len(end) + len(record)) % 8) + record
    table = b"".join(entry.pack(file.order) for entry in headers)
    return bytes(end) + table, len(table)
