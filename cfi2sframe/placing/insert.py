# SPDX-License-Identifier: Apache-2.0
"""Put a section into a linked file, at the place that has been found for it.

What is loaded keeps its file offset, except for the sections that the placement moves. What follows the loaded part
(debug sections, symbols) moves to make room for a new segment: the loaded part comes first, as linkers have it. New
section names, the undo record and the new section headers follow at the end of the file. They replace the old ones
where these end the file; elsewhere the old ones stay, unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import SHF_ALLOC, SHT_GNU_SFRAME
from cfi2sframe.elf.contents import Splice, is_zero, overwrite, spliced
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import round_up
from cfi2sframe.placing.movable import SectionPlace
from cfi2sframe.placing.place import SECTION_ALIGNMENT
from cfi2sframe.placing.section_indices import changed_contents, numbering_with, renumbered_header
from cfi2sframe.placing.undo import NAME, Undo

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import Joined
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.placing.gate import LinkedFile
    from cfi2sframe.placing.place import Placement


def inserted(placement: Placement, section: Buffer, section_type: int = SHT_GNU_SFRAME) -> Joined:
    """Return the new file: buffers to be written one after the other, most of them parts of the old one.

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. Raises `EmbedError` when the
    section does not have the planned size, or when section indices or symbols cannot be updated.
    """
    if len(section) != placement.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {placement.section_size}")
    file = placement.file
    new_vaddrs = {index: place.vaddr for index, place in placement.places.items()}
    numbering = numbering_with(file, new_vaddrs, placement.section_vaddr)
    changed = changed_contents(file, numbering, new_vaddrs)
    moved = {index: changed.get(index) or file.section_bytes(index) for index in placement.places}
    table = b"".join(segment.pack(file.order) for segment in placement.segments)
    header = file.header._replace(program_header_count=len(placement.segments))
    splices = [
        overwrite(file.sections[index].file_offset, content)
        for index, content in changed.items()
        if index not in placement.places
    ]
    old_head = b""
    if placement.table_file_offset is None:
        new_head, old_head = _head(placement, table, moved)
        splices.append(new_head)
    else:
        header = header._replace(program_headers_offset=placement.table_file_offset)
    block = _block(placement, table, moved, section)
    splices.append(block)
    if file.sections:
        names, kept_size = _names(file)
        undo = Undo(
            header=file.header.pack(),
            head=old_head,
            numbering=tuple(numbering),
            places={i: SectionPlace(file.sections[i].vaddr, file.sections[i].file_offset) for i in placement.places},
            is_inserted=placement.block.is_inserted,
            file_size=len(file.data),
            kept_size=kept_size,
            names_file_offset=file.sections[file.names_index].file_offset if names else 0,
            added_start=block.file_offset,
            added_size=len(block.content),
            old=placement.old,
        )
        end, headers_offset = _end(placement, section_type, names, undo)
        splices.append(Splice(kept_size, len(file.data) - kept_size, end))
        header = header._replace(
            section_headers_offset=headers_offset,
            section_header_count=len(numbering) + 1,
            section_names_index=numbering[file.names_index],
        )
    return spliced(file.data, [*splices, overwrite(0, header.pack())])


def _block(placement: Placement, table: bytes, moved: dict[int, bytes], section: Buffer) -> Splice:
    """Return the splice with the section, what moves there, and the padding of what is not loaded and follows it."""
    file, block = placement.file, placement.block
    start = file.loaded_end if block.is_inserted else block.section_file_offset
    size = block.end - start
    content = bytearray(round_up(size, file.alignment_from(start)) if block.is_inserted else size)
    parts = [(block.section_file_offset, section), *((at, moved[index]) for index, at in block.placed.items())]
    if placement.table_file_offset is not None:
        parts.append((placement.table_file_offset, table))
    for at, part in parts:
        content[at - start : at - start + len(part)] = part
    return Splice(start, 0 if block.is_inserted else size, bytes(content))


def _head(placement: Placement, table: bytes, moved: dict[int, bytes]) -> tuple[Splice, bytes]:
    """Return the splice for the program headers and what has moved from there or is near them, and what to keep.

    Zeros are left where sections were. To be kept is what was in the place of anything that is new.
    """
    file = placement.file
    start = file.header.program_headers_offset
    old_table_size = file.table_end - start
    staying = {i: placement.places[i].file_offset for i in moved if i not in placement.block.placed}
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


def _names(file: LinkedFile) -> tuple[bytes, int]:
    """Return the new section names, none where the old ones do, and up to which file offset the file stays.

    That is without its section headers and, before these, its section names, where they end the file and are written
    anew.
    """
    names, table, kept_size = file.section_bytes(file.names_index), file.section_table, len(file.data)
    names = b"" if NAME in names else names + NAME
    if table.end == kept_size and table.start >= file.loaded_end:
        kept_size, last = table.start, file.stored[-1]
        is_last = last.index == file.names_index and last.file_offset >= file.loaded_end
        if names and is_last and is_zero(file.data, Span(last.file_span.end, table.start)):
            kept_size = last.file_offset
    return names, kept_size


def _end(placement: Placement, section_type: int, names: bytes, undo: Undo) -> tuple[bytes, int]:
    """Return the new end of the file, and the file offset of the section headers, which are the last of it."""
    file, growth = placement.file, undo.added_size if undo.is_inserted else 0
    start = undo.kept_size + growth
    end = bytearray(-start % 8)
    names_place = start + len(end)
    end += names
    added = ElfSection(
        name_offset=(names or file.section_bytes(file.names_index)).index(NAME),
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
        if index in placement.places:
            entry = entry._replace(**placement.places[index]._asdict())
        elif not entry.flags & SHF_ALLOC and entry.file_offset >= file.loaded_end:
            entry = entry._replace(file_offset=entry.file_offset + growth)
        if index == file.names_index and names:
            entry = entry._replace(file_offset=names_place, size=len(names))
        headers[numbering[index]] = entry
    record = undo.pack()
    end += bytes(-(start + len(end) + len(record)) % 8) + record
    headers_offset = start + len(end)
    return bytes(end) + b"".join(entry.pack(file.order) for entry in headers), headers_offset
