# SPDX-License-Identifier: Apache-2.0
"""ELF files as they lie in memory: the vDSO, a deleted file, or one that is not at hand.

A loaded file keeps its headers and, with them, the way to its CFI; sections are gone.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import ELF_MAGIC, PT_LOAD, PT_NOTE
from cfi2sframe.elf.records import (
    FILE_HEADER_SIZE,
    PROGRAM_HEADER_SIZE,
    FileHeader,
    ProgramHeader,
    parse_file_header,
)
from cfi2sframe.errors import ElfError
from cfi2sframe.trace.notes import find_build_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.elf.records import ByteOrder
    from cfi2sframe.trace.frame import ReadMemory

_MAX_PROGRAM_HEADERS: Final = 128
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest program that is copied from memory: what has no file at hand is small, or huge by damage.
_MAX_IMAGE_SIZE: Final = 1 << 28


class MemoryHeaders(NamedTuple):
    """A program's headers, read from memory; `loads` are its PT_LOADs by address, `bias` what was added to them."""

    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    loads: tuple[ProgramHeader, ...]
    bias: int


def headers_in_memory(read: ReadMemory, address: int, byte_order: ByteOrder) -> MemoryHeaders | None:
    """Return the headers of the program that starts at an address; None when none does, or they are damaged."""
    data = read(address, FILE_HEADER_SIZE)
    if data is None or data[:4] != ELF_MAGIC:
        return None
    try:
        header = parse_file_header(data)
    except ElfError:
        return None
    count = header.program_header_count
    if (
        header.byte_order != byte_order
        or header.program_header_size != PROGRAM_HEADER_SIZE
        or not 0 < count <= _MAX_PROGRAM_HEADERS
    ):
        return None
    table = read(address + header.program_headers_offset, count * PROGRAM_HEADER_SIZE)
    if table is None:
        return None
    segments = tuple(ProgramHeader(*f) for f in struct.iter_unpack(byte_order + "IIQQQQQQ", table))
    loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
    if not loads or loads[-1].vaddr + loads[-1].memory_size >= 1 << 63:
        return None
    # The header is at file offset 0, which the first segment holds.
    bias = address - (loads[0].vaddr - loads[0].file_offset)
    return MemoryHeaders(header, segments, loads, bias)


def memory_build_id(read: ReadMemory, headers: MemoryHeaders | None) -> bytes | None:
    """Return the build-id of a program in memory, where its notes are there."""
    if headers is None:
        return None
    for segment in headers.segments:
        if segment.type == PT_NOTE and segment.file_size <= _MAX_NOTES_SIZE:
            data = read(segment.vaddr + headers.bias, segment.file_size)
            if data is not None:
                found = find_build_id(data, headers.header.byte_order, segment.alignment)
                if found is not None:
                    return found
    return None


def image_bytes(read: ReadMemory, address: int, byte_order: ByteOrder, max_size: int) -> bytes | None:
    """Return a file that says what memory holds of a program; None when its pages cannot be read.

    Read-only segments count, since rows and instructions are there; whatever cannot be read is left out, and so is what
    would make more than `max_size` bytes. The pieces follow one another, so that nothing but memory that is there
    needs room, and there are no sections.
    """
    headers = headers_in_memory(read, address, byte_order)
    if headers is None:
        return None
    size = max(p.end_vaddr for p in headers.loads) + headers.bias - address
    if not 0 < size <= _MAX_IMAGE_SIZE or any(b.vaddr < a.end_vaddr for a, b in pairwise(headers.loads)):
        return None
    # What lies past the memory's size is another's, whatever the file's size is said to be.
    headers = headers._replace(
        loads=tuple(p._replace(file_size=min(p.file_size, p.memory_size)) for p in headers.loads)
    )
    whole = _whole_file(read, address, headers, max_size)
    if whole is not None:
        return whole
    content = bytearray(FILE_HEADER_SIZE)
    placed: list[ProgramHeader] = []
    for load in headers.loads:
        fits = load.file_size <= max_size - len(content)
        data = read(load.vaddr + headers.bias, load.file_size) if fits else None
        if data is not None:
            content += bytes(-len(content) % 8)
            placed.append(load._replace(file_offset=len(content)))
            content += data
    if not placed:
        return None
    table = [*placed, *_moved((p for p in headers.segments if p.type != PT_LOAD), placed)]
    table_offset = -(-len(content) // 8) * 8
    content += bytes(table_offset - len(content))
    for segment in table:
        content += segment.pack(byte_order)
    header = headers.header._replace(
        program_headers_offset=table_offset,
        program_header_count=len(table),
        section_headers_offset=0,
        section_header_count=0,
        section_names_index=0,
    )
    content[:FILE_HEADER_SIZE] = header.pack()
    return bytes(content)


def _moved(segments: Iterable[ProgramHeader], placed: Sequence[ProgramHeader]) -> Iterator[ProgramHeader]:
    """Yield the segments that lie in one of those that were placed, at their new offsets."""
    for segment in segments:
        for load in placed:
            if load.vaddr <= segment.vaddr and segment.vaddr + segment.file_size <= load.vaddr + load.file_size:
                yield segment._replace(file_offset=load.file_offset + segment.vaddr - load.vaddr)
                break


def _whole_file(read: ReadMemory, address: int, headers: MemoryHeaders, max_size: int) -> bytes | None:
    """Return a file that is mapped in one piece with its section headers, as the vDSO is."""
    header, load = headers.header, headers.loads[0]
    end = header.section_headers_offset + header.section_header_count * header.section_header_size
    size = max(end, load.file_size)
    if len(headers.loads) > 1 or load.file_offset or not header.section_headers_offset or size > max_size:
        return None
    return read(address, size)
