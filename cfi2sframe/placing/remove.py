# SPDX-License-Identifier: Apache-2.0
"""Take the `.sframe` section out of a linked file.

Before the section headers of a file that `insert` has made is an undo record. With it, the original is put together
again, byte for byte, unless another tool has written the file since. Where there is no record, or it does not fit, the
section's bytes become zeros, its headers go, and everything else stays.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import PT_GNU_SFRAME, SHF_ALLOC
from cfi2sframe.elf.contents import Splice, is_equal, overwrite, spliced
from cfi2sframe.elf.headers import SECTION_HEADER_SIZE, ElfSection, parse_file_header
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.insert import inserted
from cfi2sframe.placing.movable import symbols_of
from cfi2sframe.placing.place import place_section, with_own_entry
from cfi2sframe.placing.section_indices import changed_contents, renumbered_header
from cfi2sframe.placing.undo import NAME, Undo, undo_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData, Joined
    from cfi2sframe.placing.gate import LinkedFile


def remove_section(data: FileData) -> Joined:
    """Return the file without its `.sframe` section and PT_GNU_SFRAME.

    That is the original, if the section was inserted and nothing else has written the file since, also where it took
    the place of another section. Otherwise the section's bytes become zeros, and all other bytes stay where they are.
    Raises `EmbedError` when there is no section, or when the file cannot be rewritten safely.
    """
    file = open_linked(data)
    original = original_of(file)
    return spliced(file.data, zeroing_splices(file)) if original is None else original


def original_of(file: LinkedFile) -> Joined | None:
    """Return the original of a file into which a section was inserted, if inserting again gives the file; else None."""
    undo = undo_of(file.data, file.section_table.start) if file.sections else None
    if undo is None or file.sframe_index is None:
        return None
    section, content = file.sections[file.sframe_index], file.section_bytes(file.sframe_index)
    try:
        bare = _restored(file, undo)
        original = spliced(bare, [overwrite(*piece) for piece in undo.old])
        before = open_linked(bare)
        again = inserted(place_section(before, section.size)._replace(old=undo.old), content, section.type)
    except (ElfError, EmbedError, LookupError, struct.error):
        # The record is for another file.
        return None
    return original if len(original) == len(bare) and is_equal(again, file.data) else None


def _restored(file: LinkedFile, undo: Undo) -> Joined:
    """Return the file as the record says that it was. Raises what a record for another file leads to."""
    end = undo.kept_size + (undo.added_size if undo.is_inserted else 0)
    if max(end, undo.file_size, undo.added_start + undo.added_size) > len(file.data):
        raise EmbedError("the undo record is for another file")
    inverse = [-1] * len(file.sections)
    for index, number in enumerate(undo.numbering):
        inverse[number] = index
    header, headers = parse_file_header(undo.header), _old_headers(file, undo, inverse)
    tail = bytearray(max(undo.file_size - undo.kept_size, 0))
    if tail:
        names = file.section_bytes(file.names_index)[: -len(NAME)]
        for start, content in (
            (undo.names_file_offset, names),
            (header.section_headers_offset, b"".join(entry.pack(file.order) for entry in headers)),
        ):
            if start >= undo.kept_size:
                tail[start - undo.kept_size : start - undo.kept_size + len(content)] = content
    added = bytes(0 if undo.is_inserted else undo.added_size)
    splices = [overwrite(0, undo.header), Splice(undo.added_start, undo.added_size, added)]
    splices += [overwrite(file.header.program_headers_offset, undo.head)] if undo.head else []
    bare = spliced(file.data, [*splices, Splice(end, len(file.data) - end, bytes(tail))])
    vaddrs = {undo.numbering[index]: place.vaddr for index, place in undo.places.items()}
    changed = changed_contents(file, inverse, vaddrs)
    contents = {number: changed.get(number) or file.section_bytes(number) for number in {*vaddrs, *changed}}
    return spliced(bare, [overwrite(headers[inverse[n]].file_offset, content) for n, content in contents.items()])


def _old_headers(file: LinkedFile, undo: Undo, inverse: list[int]) -> list[ElfSection]:
    """Return the section headers of the original."""
    headers = []
    for number in undo.numbering:
        entry = renumbered_header(file.sections[number], inverse)
        if undo.is_inserted and not entry.flags & SHF_ALLOC and entry.file_offset >= undo.added_start:
            entry = entry._replace(file_offset=entry.file_offset - undo.added_size)
        if number == file.names_index and undo.names_file_offset:
            entry = entry._replace(file_offset=undo.names_file_offset, size=entry.size - len(NAME))
        headers.append(entry)
    for index, place in undo.places.items():
        headers[index] = headers[index]._replace(**place._asdict())
    return headers


def zeroing_splices(file: LinkedFile) -> list[Splice]:
    """Return the splices, by file offset, that overwrite `.sframe` with zeros and remove its headers.

    Other sections keep their indices: a header that is not the last one, or that symbols refer to, becomes inactive.
    Raises `EmbedError` when there is no section.
    """
    index, entry = file.sframe_index, file.sframe_segment
    if index is not None:
        start, end = file.sections[index].file_span
    elif entry is not None:
        start, end = entry.file_span
    else:
        raise EmbedError("the file has no .sframe section")
    segments = with_own_entry([segment for segment in file.segments if segment.type != PT_GNU_SFRAME])
    table = b"".join(segment.pack(file.order) for segment in segments)
    table_start = file.header.program_headers_offset
    header = file.header._replace(program_header_count=len(segments))
    splices = [
        overwrite(table_start, table.ljust(file.table_end - table_start, b"\0")),
        overwrite(start, bytes(end - start)),
    ]
    if index is not None:
        place = file.section_table.start + SECTION_HEADER_SIZE * index
        splices.append(overwrite(place, ElfSection(0, 0, 0, 0, 0, 0, 0, 0, 0, 0).pack(file.order)))
        symbols = (symbol for table in file.symbol_tables for _, symbol in symbols_of(file, table))
        if index == len(file.sections) - 1 and all(section != index for _, section, _ in symbols):
            header = header._replace(section_header_count=index)
    return sorted([*splices, overwrite(0, header.pack())])
