# SPDX-License-Identifier: Apache-2.0
"""ELF files read from the memory of a process: the vDSO, a deleted file, or one that is missing.

The headers of a loaded file are in memory and lead to its CFI; its sections are not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import ELF_MAGIC, PT_LOAD, PT_NOTE
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    PROGRAM_HEADER_SIZE,
    FileHeader,
    ProgramHeader,
    parse_file_header,
    unpack_program_headers,
)
from cfi2sframe.elf.notes import find_build_id
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.elf.headers import ByteOrder
    from cfi2sframe.trace.frame import ReadMemory

_MAX_PROGRAM_HEADERS: Final = 128
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest program that is copied from memory: one without a file is small, or its size is wrong.
_MAX_IMAGE_SIZE: Final = 1 << 28


class MemoryHeaders(NamedTuple):
    """A program's headers, read from memory; `loads` are its PT_LOAD entries by address, `bias` is the load bias."""

    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    loads: tuple[ProgramHeader, ...]
    bias: int


def headers_in_memory(read: ReadMemory, address: int, byte_order: ByteOrder) -> MemoryHeaders | None:
    """Return the headers of the program that starts at an address; None when there is none, or they are damaged."""
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
    segments = unpack_program_headers(table, byte_order)
    loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
    if not loads or loads[-1].vaddr + loads[-1].memory_size >= 1 << 63:
        return None
    # The header is at file offset 0, which the first segment holds.
    bias = address - (loads[0].vaddr - loads[0].file_offset)
    return MemoryHeaders(header, segments, loads, bias)


def memory_build_id(read: ReadMemory, headers: MemoryHeaders | None) -> bytes | None:
    """Return the build-id of a program in memory; None when its notes are not there."""
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


def image_bytes(read: ReadMemory, address: int, byte_order: ByteOrder) -> bytes | None:
    """Return an ELF file made of what memory holds of a program; None when its pages cannot be read.

    It has the segments that can be read, one after the other, and no sections. Segments that would make it larger than
    `_MAX_IMAGE_SIZE` bytes are left out.
    """
    headers = headers_in_memory(read, address, byte_order)
    if headers is None:
        return None
    size = max(p.end_vaddr for p in headers.loads) + headers.bias - address
    if not 0 < size <= _MAX_IMAGE_SIZE or any(b.vaddr < a.end_vaddr for a, b in pairwise(headers.loads)):
        return None
    # Bytes past p_memsz belong to something else, however large p_filesz is.
    headers = headers._replace(
        loads=tuple(p._replace(file_size=min(p.file_size, p.memory_size)) for p in headers.loads)
    )
    whole = _whole_file(read, address, headers)
    if whole is not None:
        return whole
    content = bytearray(FILE_HEADER_SIZE)
    placed: list[ProgramHeader] = []
    for load in headers.loads:
        fits = load.file_size <= _MAX_IMAGE_SIZE - len(content)
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
    """Yield the segments that are within one of those placed, at their new offsets."""
    for segment in segments:
        for load in placed:
            if load.vaddr <= segment.vaddr and segment.vaddr + segment.file_size <= load.vaddr + load.file_size:
                yield segment._replace(file_offset=load.file_offset + segment.vaddr - load.vaddr)
                break


def _whole_file(read: ReadMemory, address: int, headers: MemoryHeaders) -> bytes | None:
    """Return a file that is mapped in one piece with its section headers, as the vDSO is."""
    header, load = headers.header, headers.loads[0]
    end = header.section_headers_offset + header.section_header_count * header.section_header_size
    size = max(end, load.file_size)
    if len(headers.loads) > 1 or load.file_offset or not header.section_headers_offset or size > _MAX_IMAGE_SIZE:
        return None
    return read(address, size)
