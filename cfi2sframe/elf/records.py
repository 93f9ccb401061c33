# SPDX-License-Identifier: Apache-2.0
"""ELF64 file header, section and program headers as records: parsed from bytes, packed back to bytes.

Knows the on-disk layout and nothing else; whether a header makes sense is for its reader to decide.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.elf.constants import (
    ELF_MAGIC,
    ELFCLASS64,
    ELFDATA2LSB,
    ELFDATA2MSB,
    SHN_UNDEF,
    SHN_XINDEX,
    SHT_GNU_SFRAME,
    SHT_PROGBITS,
)
from cfi2sframe.errors import ElfError, NotElfError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from cfi2sframe.elf.contents import LazyBytes
    from cfi2sframe.elf.image import ElfSection

    #: A file's bytes, in memory or read range by range: what both give is a length, and bytes for a slice.
    FileData: TypeAlias = "Buffer | LazyBytes"

Buffer = bytes | bytearray | memoryview
ByteOrder = Literal["<", ">"]

FILE_HEADER_SIZE = 64
SECTION_HEADER_SIZE = 64
PROGRAM_HEADER_SIZE = 56
SYMBOL_SIZE = 24
RELA_SIZE = 24
REL_SIZE = 16
DYNAMIC_ENTRY_SIZE = 16

SFRAME_NAME = ".sframe"


def is_sframe_section(kind: int, name: str) -> bool:
    """Whether a section is an SFrame section, by its type, or by its name as tools before binutils 2.45 have them.

    Another kind of section by that name, a symbol table say, is none.
    """
    return kind == SHT_GNU_SFRAME or (kind == SHT_PROGBITS and name == SFRAME_NAME)


class FileHeader(NamedTuple):
    """Elf64_Ehdr. `ident` is e_ident, 16 bytes; the counts are as stored (see `section_count` of a reader)."""

    ident: bytes
    type: int
    machine: int
    version: int
    entry_vaddr: int
    program_headers_offset: int
    section_headers_offset: int
    flags: int
    header_size: int
    program_header_size: int
    program_header_count: int
    section_header_size: int
    section_header_count: int
    section_names_index: int

    @property
    def byte_order(self) -> ByteOrder:
        """`<` or `>`, as `struct` spells it."""
        return "<" if self.ident[5] == ELFDATA2LSB else ">"

    def pack(self) -> bytes:
        """Return the 64 bytes of the header."""
        return struct.pack(self.byte_order + "16sHHIQQQIHHHHHH", *self)


class SectionHeader(NamedTuple):
    """Elf64_Shdr; `name_offset` is in the section name string table."""

    name_offset: int
    type: int
    flags: int
    vaddr: int
    file_offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    def pack(self, byte_order: ByteOrder) -> bytes:
        """Return the 64 bytes of the header."""
        return struct.pack(byte_order + "IIQQQQIIQQ", *self)


class ProgramHeader(NamedTuple):
    """Elf64_Phdr: one segment."""

    type: int
    flags: int
    file_offset: int
    vaddr: int
    paddr: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def end_vaddr(self) -> int:
        """The first address past the segment in memory."""
        return self.vaddr + self.memory_size

    def pack(self, byte_order: ByteOrder) -> bytes:
        """Return the 56 bytes of the header."""
        return struct.pack(byte_order + "IIQQQQQQ", *self)


def parse_file_header(data: FileData) -> FileHeader:
    """Parse the ELF64 file header at the start of `data`.

    Raises `UnfitError` when it is not ELF or not 64 bits wide, `ElfError` when truncated or of an unknown byte order.
    """
    head = bytes(data[:FILE_HEADER_SIZE])
    if head[:4] != ELF_MAGIC:
        raise NotElfError("not an ELF file")
    if len(head) < FILE_HEADER_SIZE:
        raise ElfError(f"truncated: the ELF header needs {FILE_HEADER_SIZE} bytes, the file has {len(head)}")
    if head[4] != ELFCLASS64:
        raise UnfitError("not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only")
    if head[5] not in (ELFDATA2LSB, ELFDATA2MSB):
        raise ElfError(f"unknown byte order {head[5]} in the ELF header")
    order = "<" if head[5] == ELFDATA2LSB else ">"
    return FileHeader(*struct.unpack(order + "16sHHIQQQIHHHHHH", head))


def parse_section_headers(data: FileData, header: FileHeader) -> list[SectionHeader]:
    """Parse the section header table; empty when the file has none.

    Raises `ElfError` when the table leaves the file or its entry size is not ELF64's.
    """
    offset = header.section_headers_offset
    if offset == 0:
        return []
    if header.section_header_size != SECTION_HEADER_SIZE:
        raise ElfError(f"section headers of {header.section_header_size} bytes, not {SECTION_HEADER_SIZE}")
    unpacker = struct.Struct(header.byte_order + "IIQQQQIIQQ")
    if offset + SECTION_HEADER_SIZE > len(data):
        raise ElfError(f"truncated: the section headers at 0x{offset:x} leave the file")
    count = header.section_header_count
    if count == 0:
        # More than 0xff00 sections: the count is in the size field of the null section (gABI, e_shnum).
        count = SectionHeader(*unpacker.unpack(data[offset : offset + SECTION_HEADER_SIZE])).size
    end = offset + count * SECTION_HEADER_SIZE
    if end > len(data):
        raise ElfError(f"truncated: {count} section headers at 0x{offset:x} leave the file")
    return [SectionHeader(*fields) for fields in unpacker.iter_unpack(data[offset:end])]


def section_names_index(header: FileHeader, sections: Sequence[SectionHeader | ElfSection]) -> int:
    """Return the index of the section that holds the section names; 0 when there is none."""
    index = header.section_names_index
    if index == SHN_XINDEX and sections:
        index = sections[0].link
    return index if index < len(sections) else SHN_UNDEF


def parse_program_headers(data: FileData, header: FileHeader) -> list[ProgramHeader]:
    """Parse the program header table; empty when the file has none.

    Raises `ElfError` when the table leaves the file or its entry size is not ELF64's.
    """
    count = header.program_header_count
    if count == 0 or header.program_headers_offset == 0:
        return []
    if header.program_header_size != PROGRAM_HEADER_SIZE:
        raise ElfError(f"program headers of {header.program_header_size} bytes, not {PROGRAM_HEADER_SIZE}")
    offset = header.program_headers_offset
    end = offset + count * PROGRAM_HEADER_SIZE
    if end > len(data):
        raise ElfError(f"truncated: {count} program headers at 0x{offset:x} leave the file")
    unpacker = struct.Struct(header.byte_order + "IIQQQQQQ")
    return [ProgramHeader(*fields) for fields in unpacker.iter_unpack(data[offset:end])]


def machine_name(machine: int, byte_order: str) -> str:
    """Return the name of an ELF machine for messages, such as `EM_RISCV`; big-endian variants say so."""
    from elftools.elf.enums import ENUM_E_MACHINE

    # One of the names stands for those that are not there, and has no number.
    names = [name for name in ENUM_E_MACHINE if name != "_default_" and ENUM_E_MACHINE[name] == machine]
    name = names[0] if names else f"ELF machine {machine}"
    return f"{name} ({'big' if byte_order == '>' else 'little'}-endian)"
