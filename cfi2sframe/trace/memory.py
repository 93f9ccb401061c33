# SPDX-License-Identifier: Apache-2.0
"""Memory of a process in pieces, and the ELF files that were loaded into it: the vDSO, a deleted or missing file.

The headers of a loaded file are in memory and lead to its CFI; its sections mostly are not.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.elf.constants import PT_LOAD, PT_NOTE
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, parse_file_header, unpack_program_headers
from cfi2sframe.elf.notes import NT_GNU_BUILD_ID, parse_notes
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder, FileHeader, ProgramHeader
    from cfi2sframe.trace.frames import ReadMemory

_Record = TypeVar("_Record", bound=tuple[object, ...])

PAGE_SIZE: Final = 0x1000
_MAX_PROGRAM_HEADERS: Final = 128
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest file that is copied from memory: one that is only there is small, or its size is wrong.
_MAX_FILE_SIZE: Final = 1 << 28
#: The most bytes of sections that follow the segment of the vDSO.
_MAX_SECTIONS_SIZE: Final = 1 << 16


def last_from(records: Sequence[_Record], address: int) -> _Record | None:
    """Return the last of some records, ordered by the address in their first field, that starts at or before one."""
    index = bisect_right(records, address, key=itemgetter(0)) - 1
    return records[index] if index >= 0 else None


class Memory:
    """Pieces of memory: addresses, and the bytes from there on. They do not overlap."""

    def __init__(self, pieces: Iterable[tuple[int, FileData]]) -> None:
        self.pieces = sorted(pieces, key=itemgetter(0))

    @classmethod
    def at(cls, address: int, data: FileData) -> Memory:
        """Return memory of one piece, such as the copy of a stack from SP upwards."""
        return cls([(address, data)])

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None where some are missing; they may span pieces."""
        found = b""
        while len(found) < size:
            start, data = last_from(self.pieces, address + len(found)) or (0, b"")
            skipped = address + len(found) - start
            part = bytes(data[skipped : skipped + size - len(found)])
            if not part:
                return None
            found += part
        return found


class LoadedFile(NamedTuple):
    """The headers of an ELF file in memory, and its PT_LOAD entries by address; `bias` is added to its addresses."""

    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    loads: tuple[ProgramHeader, ...]
    bias: int


def loaded_file(read: ReadMemory, start: int, byte_order: ByteOrder) -> LoadedFile | None:
    """Return the headers of the ELF file that is loaded at an address; None when there is none, or they are damaged."""
    try:
        header = parse_file_header(read(start, FILE_HEADER_SIZE) or b"")
    except ElfError:
        return None
    count = header.program_header_count
    is_usual = header.byte_order == byte_order and header.program_header_size == PROGRAM_HEADER_SIZE
    if not is_usual or count > _MAX_PROGRAM_HEADERS:
        return None
    table = read(start + header.program_headers_offset, count * PROGRAM_HEADER_SIZE) or b""
    segments = unpack_program_headers(table, byte_order)
    loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
    if not loads or loads[-1].end_vaddr >= 1 << 63:
        return None
    return LoadedFile(header, segments, loads, start - (loads[0].vaddr - loads[0].file_offset))


def end_of(loads: Iterable[ProgramHeader], bias: int) -> int:
    """Return the end of the last page of a file in memory."""
    return -(-(max(p.end_vaddr for p in loads) + bias) // PAGE_SIZE) * PAGE_SIZE


def build_id(read: ReadMemory, segments: Iterable[ProgramHeader], bias: int, byte_order: ByteOrder) -> bytes | None:
    """Return the build-id of a file in memory; None when its notes are not there."""
    for segment in segments:
        if segment.type == PT_NOTE and segment.file_size <= _MAX_NOTES_SIZE:
            data = read(segment.vaddr + bias, segment.file_size) or b""
            for note in parse_notes(data, byte_order, segment.alignment):
                if note.owner == b"GNU" and note.type == NT_GNU_BUILD_ID and note.data:
                    return note.data
    return None


def file_from_memory(read: ReadMemory, loaded: LoadedFile) -> bytes | None:
    """Return the bytes of a file, made of what memory has of its segments; None when that is nothing, or too much.

    File offsets are distances in memory. Sections are there only if memory has the file as it is, as of the vDSO.
    """
    header, loads = loaded.header, loaded.loads
    # The file's address of its ELF header, which is at file offset 0.
    base = loads[0].vaddr - loads[0].file_offset
    size = max(p.end_vaddr for p in loads) - base
    sections_end = header.section_headers_offset + header.section_header_count * header.section_header_size
    if size > _MAX_FILE_SIZE or any(b.vaddr < a.end_vaddr for a, b in pairwise(loads)):
        return None
    if len(loads) == 1 and header.section_headers_offset and sections_end <= size + _MAX_SECTIONS_SIZE:
        whole = read(base + loaded.bias, max(size, sections_end))
        if whole is not None:
            return whole
    content = bytearray(FILE_HEADER_SIZE)
    kept: list[ProgramHeader] = []
    for p in loads:
        # Bytes past p_memsz belong to something else, however large p_filesz is.
        load = p._replace(file_offset=p.vaddr - base, file_size=min(p.file_size, p.memory_size))
        data = read(p.vaddr + loaded.bias, load.file_size)
        if data is not None:
            content += bytes(load.file_offset + len(data) - len(content))
            content[load.file_offset : load.file_offset + len(data)] = data
            kept.append(load)
    if not kept:
        return None
    others = [p._replace(file_offset=p.vaddr - base) for p in loaded.segments if p.type != PT_LOAD]
    kept += [p for p in others if any(load.holds(p.vaddr, p.file_offset, p.file_size) for load in kept)]
    header = header._replace(
        program_headers_offset=len(content),
        program_header_count=len(kept),
        section_headers_offset=0,
        section_header_count=0,
        section_names_index=0,
    )
    content[:FILE_HEADER_SIZE] = header.pack()
    return bytes(content) + b"".join(p.pack(header.byte_order) for p in kept)
