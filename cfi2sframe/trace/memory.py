# SPDX-License-Identifier: Apache-2.0
"""Memory of a process in pieces, and the ELF files that were loaded into it: the vDSO, a deleted or missing file.

The headers of a loaded file are in memory and lead to its CFI; its sections mostly are not.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import ELF_MAGIC, PT_LOAD, PT_NOTE
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, parse_file_header, unpack_program_headers
from cfi2sframe.elf.notes import find_build_id
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder, FileHeader, ProgramHeader
    from cfi2sframe.trace.frames import ReadMemory

_MAX_PROGRAM_HEADERS: Final = 128
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest file that is copied from memory: one that is only there is small, or its size is wrong.
_MAX_FILE_SIZE: Final = 1 << 28
#: The most bytes of sections that follow the segment of the vDSO.
_MAX_SECTIONS_SIZE: Final = 1 << 16


class MemoryPiece(NamedTuple):
    """`size` bytes of memory from `start`, kept in `data` from `offset` on."""

    start: int
    size: int
    data: FileData
    offset: int = 0


class Memory:
    """Pieces by address, which do not overlap."""

    def __init__(self, pieces: Iterable[MemoryPiece]) -> None:
        self.pieces = sorted(pieces, key=lambda piece: piece.start)
        self._starts = [piece.start for piece in self.pieces]

    @classmethod
    def at(cls, address: int, data: FileData) -> Memory:
        """Return memory of one piece, such as the copy of a stack from SP upwards."""
        return cls([MemoryPiece(address, len(data), data)])

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None where some are missing; they may span pieces."""
        found = b""
        while len(found) < size:
            index = bisect_right(self._starts, address + len(found)) - 1
            if index < 0:
                return None
            start, piece_size, data, offset = self.pieces[index]
            skipped = address + len(found) - start
            wanted = min(size - len(found), piece_size - skipped)
            part = bytes(data[offset + skipped : offset + skipped + wanted]) if wanted > 0 else b""
            if not part:
                return None
            found += part
        return found


class LoadedFile(NamedTuple):
    """The headers of an ELF file in memory, and its PT_LOAD entries by address."""

    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    loads: tuple[ProgramHeader, ...]
    bias: int


def loaded_file(read: ReadMemory, start: int, byte_order: ByteOrder) -> LoadedFile | None:
    """Return the headers of the ELF file that is loaded at an address; None when there is none, or they are damaged."""
    data = read(start, FILE_HEADER_SIZE)
    if data is None or data[:4] != ELF_MAGIC:
        return None
    try:
        header = parse_file_header(data)
    except ElfError:
        return None
    count = header.program_header_count
    is_usual = header.byte_order == byte_order and header.program_header_size == PROGRAM_HEADER_SIZE
    if not is_usual or not 0 < count <= _MAX_PROGRAM_HEADERS:
        return None
    table = read(start + header.program_headers_offset, count * PROGRAM_HEADER_SIZE)
    segments = () if table is None else unpack_program_headers(table, byte_order)
    loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
    if not loads or loads[-1].end_vaddr >= 1 << 63:
        return None
    return LoadedFile(header, segments, loads, start - (loads[0].vaddr - loads[0].file_offset))


def build_id_in_memory(read: ReadMemory, loaded: LoadedFile) -> bytes | None:
    """Return the build-id of a file in memory; None when its notes are not there."""
    for segment in loaded.segments:
        if segment.type == PT_NOTE and segment.file_size <= _MAX_NOTES_SIZE:
            data = read(segment.vaddr + loaded.bias, segment.file_size)
            found = None if data is None else find_build_id(data, loaded.header.byte_order, segment.alignment)
            if found is not None:
                return found
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
