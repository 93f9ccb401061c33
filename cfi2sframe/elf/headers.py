# SPDX-License-Identifier: Apache-2.0
"""The headers of an ELF64 file as records, from bytes and back: file header, program headers, section headers.

Knows the fields of the gABI and nothing else; callers check whether the headers make sense.
"""

import struct
from typing import Final, Literal, NamedTuple, Protocol

from cfi2sframe.constants.elf import (
    ELF_MAGIC,
    ELFCLASS64,
    ELFDATA2LSB,
    ELFDATA2MSB,
    PN_XNUM,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHN_UNDEF,
    SHN_XINDEX,
    SHT_GNU_SFRAME,
    SHT_NOBITS,
    SHT_NULL,
    SHT_PROGBITS,
    SHT_STRTAB,
)
from cfi2sframe.elf.other_files import hint_about
from cfi2sframe.errors import ElfError, ForeignError, NotElfError
from cfi2sframe.range_map import Span

Buffer = bytes | bytearray | memoryview
ByteOrder = Literal["<", ">"]

FILE_HEADER_SIZE = 64
SECTION_HEADER_SIZE = 64
PROGRAM_HEADER_SIZE = 56
SYMBOL_SIZE = 24
RELA_SIZE = 24
DYNAMIC_ENTRY_SIZE = 16
#: The offset of the end of e_type, which is at the same place in both classes.
_TYPE_END: Final = 18

SFRAME_NAME = ".sframe"

_FILE_HEADER = "16sHHIQQQIHHHHHH"
_SECTION_HEADER = "IIQQQQIIQQ"
_PROGRAM_HEADER = "IIQQQQQQ"


class Sliceable(Protocol):
    """Bytes in memory or in a file, to be read in slices."""

    def __len__(self) -> int: ...
    def __getitem__(self, wanted: slice, /) -> Buffer: ...


class StringTable:
    """The strings of a string table by offset in bytes, each decoded once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._decoded: dict[int, str] = {}

    def at(self, offset: int) -> str:
        """Return the string at an offset, up to its NUL or the table's end; empty when the offset leaves the table.

        Bytes that are not UTF-8 are escaped.
        """
        text = self._decoded.get(offset)
        if text is None:
            end = self._data.find(b"\0", offset)
            raw = self._data[offset:] if end < 0 else self._data[offset:end]
            text = self._decoded[offset] = raw.decode("utf-8", "backslashreplace")
        return text


class FileHeader(NamedTuple):
    """Elf64_Ehdr. `ident` is e_ident, 16 bytes. Counts and indices are as stored; the null section holds large ones."""

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
        return struct.pack(self.byte_order + _FILE_HEADER, *self)


class ElfSection(NamedTuple):
    """Elf64_Shdr, with the section's index and name; `name_offset` is an offset in the table of section names.

    Sizes count bytes. An image assigns addresses to the sections of an object; `vaddr` is 0 where nothing is loaded.
    """

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
    index: int = 0  # type: ignore[assignment]  # hides tuple.index
    name: str = ""

    @property
    def end_vaddr(self) -> int:
        """The first address past the section."""
        return self.vaddr + self.size

    @property
    def file_span(self) -> Span:
        """The file offsets of the section's contents, where it has any (see `is_stored`)."""
        return Span(self.file_offset, self.file_offset + self.size)

    @property
    def is_stored(self) -> bool:
        """True if the section occupies bytes of the file."""
        return self.type not in (SHT_NULL, SHT_NOBITS) and self.size > 0

    @property
    def is_code(self) -> bool:
        """True if the section holds instructions that are loaded."""
        return (self.flags & (SHF_ALLOC | SHF_EXECINSTR)) == SHF_ALLOC | SHF_EXECINSTR

    @property
    def is_sframe(self) -> bool:
        """True if this is an SFrame section.

        Tools before binutils 2.45 give it the type SHT_PROGBITS and find it by its name. A section of that name with
        any other type, such as SHT_NOTE, is not one.
        """
        return self.type == SHT_GNU_SFRAME or (self.type == SHT_PROGBITS and self.name == SFRAME_NAME)

    def pack(self, byte_order: ByteOrder) -> bytes:
        """Return the 64 bytes of the header."""
        return struct.pack(byte_order + _SECTION_HEADER, *self[:10])


#: The header of an inactive section.
INACTIVE: Final = ElfSection(0, SHT_NULL, 0, 0, 0, 0, 0, 0, 0, 0)


class ProgramHeader(NamedTuple):
    """Elf64_Phdr: one segment. Sizes count bytes."""

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

    @property
    def file_span(self) -> Span:
        """The file offsets of the segment's contents."""
        return Span(self.file_offset, self.file_offset + self.file_size)

    @property
    def stored_vaddrs(self) -> Span:
        """The addresses of the segment's contents; those after them, up to `end_vaddr`, hold zeros."""
        return Span(self.vaddr, self.vaddr + self.file_size)

    def vaddr_of(self, file_offset: int) -> int:
        """Return the address of a file offset by the segment's distance between them; it may be outside the segment."""
        return file_offset - self.file_offset + self.vaddr

    def offset_of(self, vaddr: int) -> int:
        """Return the file offset of an address, the reverse of `vaddr_of`."""
        return vaddr - self.vaddr + self.file_offset

    def pack(self, byte_order: ByteOrder) -> bytes:
        """Return the 56 bytes of the header."""
        return struct.pack(byte_order + _PROGRAM_HEADER, *self)


class Headers(NamedTuple):
    """All headers of a file, and the index of the section that holds the section names (0: there is none)."""

    file: FileHeader
    segments: tuple[ProgramHeader, ...]
    sections: tuple[ElfSection, ...]
    names_index: int


def file_type_of(data: Sliceable) -> int | None:
    """Return e_type of an ELF file of either class; None for any other file."""
    head = bytes(data[:_TYPE_END])
    if len(head) < _TYPE_END or head[:4] != ELF_MAGIC:
        return None
    return int.from_bytes(head[16:], "big" if head[5] == ELFDATA2MSB else "little")


def parse_file_header(data: Sliceable) -> FileHeader:
    """Parse the ELF64 file header at the start of `data`.

    Raises `NotElfError` when it is not ELF, `ForeignError` when it is not 64 bits wide, `ElfError` when it is truncated
    or of an unknown byte order.
    """
    head = bytes(data[:FILE_HEADER_SIZE])
    if head[:4] != ELF_MAGIC:
        raise NotElfError(f"not an ELF file{hint_about(head)}")
    if len(head) < FILE_HEADER_SIZE:
        raise ElfError(f"truncated: the ELF header needs {FILE_HEADER_SIZE} bytes, the file has {len(head)}")
    if head[4] != ELFCLASS64:
        raise ForeignError("not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only")
    if head[5] not in (ELFDATA2LSB, ELFDATA2MSB):
        raise ElfError(f"unknown byte order {head[5]} in the ELF header")
    order = "<" if head[5] == ELFDATA2LSB else ">"
    return FileHeader(*struct.unpack(order + _FILE_HEADER, head))


def parse_headers(data: Sliceable, header: FileHeader | None = None) -> Headers:
    """Parse all headers of a file; `header` is its file header where the caller has parsed that already.

    A section whose name is not in the table of names has an empty one. Raises what `parse_file_header`,
    `parse_program_headers` and `parse_section_headers` raise.
    """
    header = header or parse_file_header(data)
    segments = parse_program_headers(data, header)
    sections = parse_section_headers(data, header)
    index = header.section_names_index
    if index == SHN_XINDEX and sections:
        # An index that needs more than 16 bits is in the null section (gABI, e_shstrndx).
        index = sections[0].link
    index = index if index < len(sections) else SHN_UNDEF
    if sections and sections[index].type == SHT_STRTAB:
        start, end = sections[index].file_span
        names = StringTable(bytes(data[start:end]))
        sections = tuple(section._replace(name=names.at(section.name_offset)) for section in sections)
    return Headers(header, segments, sections, index)


def parse_section_headers(data: Sliceable, header: FileHeader) -> tuple[ElfSection, ...]:
    """Parse the section header table, without names; empty when the file has none.

    Raises `ElfError` when the table leaves the file or its entry size is not ELF64's.
    """
    if header.section_headers_offset == 0:
        return ()
    if header.section_header_size != SECTION_HEADER_SIZE:
        raise ElfError(f"section headers of {header.section_header_size} bytes, not {SECTION_HEADER_SIZE}")
    # More than 0xff00 sections: the count is in the size field of the null section (gABI, e_shnum).
    count = header.section_header_count or _null_section(data, header).size
    table = _table(data, header.section_headers_offset, count, SECTION_HEADER_SIZE, "section headers")
    records = struct.iter_unpack(header.byte_order + _SECTION_HEADER, table)
    return tuple(ElfSection._make((*fields, index, "")) for index, fields in enumerate(records))


def parse_program_headers(data: Sliceable, header: FileHeader) -> tuple[ProgramHeader, ...]:
    """Parse the program header table; empty when the file has none.

    Raises `ElfError` when the table leaves the file or its entry size is not ELF64's.
    """
    count = header.program_header_count
    if count == PN_XNUM:
        # A count that needs more than 16 bits is in the null section (gABI, e_phnum).
        if not header.section_headers_offset:
            raise ElfError("truncated: the number of program headers is in a section header that is not there")
        count = _null_section(data, header).info
    if count == 0 or header.program_headers_offset == 0:
        return ()
    if header.program_header_size != PROGRAM_HEADER_SIZE:
        raise ElfError(f"program headers of {header.program_header_size} bytes, not {PROGRAM_HEADER_SIZE}")
    table = _table(data, header.program_headers_offset, count, PROGRAM_HEADER_SIZE, "program headers")
    records = struct.iter_unpack(header.byte_order + _PROGRAM_HEADER, table)
    return tuple(ProgramHeader(*fields) for fields in records)


def _null_section(data: Sliceable, header: FileHeader) -> ElfSection:
    table = _table(data, header.section_headers_offset, 1, SECTION_HEADER_SIZE, "section headers")
    return ElfSection(*struct.unpack(header.byte_order + _SECTION_HEADER, table))


def _table(data: Sliceable, offset: int, count: int, entry_size: int, what: str) -> Buffer:
    end = offset + count * entry_size
    if end > len(data):
        raise ElfError(f"truncated: {count} {what} at 0x{offset:x} extend past the end of the file")
    return data[offset:end]


def machine_name(machine: int, byte_order: str) -> str:
    """Return the name of an ELF machine for messages, such as `EM_RISCV`, with the byte order."""
    from elftools.elf.enums import ENUM_E_MACHINE

    names = [name for name, number in ENUM_E_MACHINE.items() if number == machine]
    name = names[0] if names else f"ELF machine {machine}"
    return f"{name} ({'big' if byte_order == '>' else 'little'}-endian)"
