# SPDX-License-Identifier: Apache-2.0
"""Take the `.sframe` section out of a linked file.

Before the section headers of a file that `insert` has made is an undo record. With it, the original is put together
again, byte for byte, unless another tool has written the file since. Where there is no record, or it does not fit, the
section's bytes become zeros, its headers go, and everything else stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import PT_GNU_SFRAME
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, SECTION_HEADER_SIZE, SectionHeader, parse_headers
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.edits import Splice, apply, ordered, overwrite
from cfi2sframe.placing.movable import symbols_in
from cfi2sframe.placing.place import with_own_entry
from cfi2sframe.placing.section_indices import changed_contents
from cfi2sframe.placing.undo import Undo, undo_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import Joined
    from cfi2sframe.placing.gate import LinkedFile


def restored(file: LinkedFile) -> Joined | None:
    """Return the original of a file by its undo record; None without one, or where it does not fit.

    The caller has to prove that the original gives the file: others may have written it since.
    """
    undo = undo_of(file.data, file.section_table.start) if file.sections else None
    if undo is None or len(undo.numbering) >= len(file.sections) or max(undo.numbering) >= len(file.sections):
        return None
    try:
        return _restored(file, undo)
    except (ElfError, EmbedError):
        return None


def _restored(file: LinkedFile, undo: Undo) -> Joined:
    end = undo.file_size + (undo.added_size if undo.is_inserted else 0)
    if not FILE_HEADER_SIZE <= end <= len(file.data):
        raise EmbedError("the undo record is for another file")
    added = bytes(0 if undo.is_inserted else undo.added_size)
    splices = [overwrite(0, undo.header), Splice(undo.added_start, undo.added_size, added)]
    if undo.head:
        splices.append(overwrite(file.header.program_headers_offset, undo.head))
    if end < len(file.data):
        splices.append(Splice(end, len(file.data) - end, b""))
    bare = apply(file.data, ordered(splices))
    old = parse_headers(bare)
    if len(old.sections) != len(undo.numbering):
        raise EmbedError("the undo record is for another file")
    inverse = [-1] * len(file.sections)
    for index, number in enumerate(undo.numbering):
        inverse[number] = index
    places = {
        number: section
        for number, section in zip(undo.numbering, old.sections, strict=True)
        if section.vaddr != file.sections[number].vaddr
    }
    changed = changed_contents(file, inverse, {number: section.vaddr for number, section in places.items()})
    contents = {number: changed.get(number) or file.section_bytes(number) for number in {*places, *changed}}
    back = [overwrite(old.sections[inverse[number]].file_offset, content) for number, content in contents.items()]
    return apply(bare, ordered(back))


def removal_splices(file: LinkedFile) -> tuple[Splice, ...]:
    """Return the splices that overwrite `.sframe` with zeros and remove its headers and PT_GNU_SFRAME.

    Other sections keep their indices: a header that is not the last one, or that symbols refer to, becomes inactive.
    Raises `EmbedError` when there is no section.
    """
    index, entry = file.sframe_index(), file.sframe_segment()
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
        splices.append(overwrite(place, SectionHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, 0).pack(file.order)))
        if index == len(file.sections) - 1 and not any(symbols_in(file, frozenset({index}))):
            header = header._replace(section_header_count=index)
    return ordered([*splices, overwrite(0, header.pack())])
