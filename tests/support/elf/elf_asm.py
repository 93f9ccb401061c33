# SPDX-License-Identifier: Apache-2.0
"""A small ELF64 writer for tests: named sections, segments, symbols and relocations in, the file out."""

import struct
from typing import Literal, NamedTuple

PAGE_SIZE = 0x1000
EHDR_SIZE, PHDR_SIZE, SHDR_SIZE = 64, 56, 64
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOBITS = 1, 2, 3, 4, 8
SHF_ALLOC, SHF_INFO_LINK = 2, 0x40
ET_REL = 1
SPECIAL_SECTIONS = {"": 0, "*ABS*": 0xFFF1, "*COM*": 0xFFF2}


class Section(NamedTuple):
    """One section; `link` and `info` are plain numbers, `nobits_size` is for SHT_NOBITS (bytes).

    `title` is what the file calls it, where several sections of the file have one name.
    """

    name: str
    data: bytes = b""
    type: int = SHT_PROGBITS
    flags: int = 0
    addr: int = 0
    link: int = 0
    info: int = 0
    entsize: int = 0
    align: int = 1
    nobits_size: int = 0
    title: str = ""


class Segment(NamedTuple):
    """A segment from the first to the last of the named sections; `headers` lets it start at the file's."""

    type: int
    flags: int
    sections: tuple[str, ...]
    headers: bool = False
    align: int = PAGE_SIZE


class Symbol(NamedTuple):
    """A symbol; `info` is binding << 4 | type, `section` a section's name, "" (undefined) or "*ABS*"."""

    name: str
    value: int = 0
    size: int = 0
    info: int = 0x12
    section: str = ".text"


class Relocation(NamedTuple):
    """A RELA relocation of `section` at `offset` (bytes from the section's start) against a named symbol."""

    section: str
    offset: int
    symbol: str
    type: int
    addend: int = 0


class _File(NamedTuple):
    order: Literal["<", ">"]
    sections: tuple[Section, ...]
    offsets: tuple[int, ...]
    names: bytes


def elf_file(
    machine: int,
    sections: tuple[Section, ...],
    *,
    file_type: int = ET_REL,
    little_endian: bool = True,
    segments: tuple[Segment, ...] = (),
    symbols: tuple[Symbol, ...] = (),
    relocations: tuple[Relocation, ...] = (),
    entry_vaddr: int = 0,
    section_headers: bool = True,
) -> bytes:
    """Return an ELF64 file.

    Sections get the numbers 1, 2, ... in the order given; then come .rela sections, .symtab, .strtab and
    .shstrtab as far as they are needed.  Symbols are sorted local first.  Without `section_headers` the
    sections are known through the segments alone.
    """
    order: Literal["<", ">"] = "<" if little_endian else ">"
    complete = _with_tables(order, sections, symbols, relocations)
    names = b"\0" + b"".join((section.title or section.name).encode() + b"\0" for section in complete) + b".shstrtab\0"
    complete = (*complete, Section(".shstrtab", names, SHT_STRTAB))
    offsets, end = _place(complete, EHDR_SIZE + PHDR_SIZE * len(segments))
    file = _File(order, complete, offsets, names)
    section_table_offset = -(-end // 8) * 8 if section_headers else 0
    out = bytearray(section_table_offset or end)
    ident = b"\x7fELF\x02" + (b"\x01" if little_endian else b"\x02") + b"\x01" + bytes(9)
    out[:EHDR_SIZE] = ident + struct.pack(
        order + "HHIQQQIHHHHHH",
        *(file_type, machine, 1, entry_vaddr, EHDR_SIZE if segments else 0, section_table_offset, 0),
        *(EHDR_SIZE, PHDR_SIZE if segments else 0, len(segments), SHDR_SIZE),
        *((len(complete) + 1, len(complete)) if section_headers else (0, 0)),
    )
    for index, segment in enumerate(segments):
        start = EHDR_SIZE + PHDR_SIZE * index
        out[start : start + PHDR_SIZE] = _program_header(file, segment)
    for section, start in zip(complete, offsets, strict=True):
        out[start : start + len(section.data)] = section.data
    return bytes(out) + (_section_headers(file) if section_headers else b"")


def _with_tables(
    order: str,
    sections: tuple[Section, ...],
    symbols: tuple[Symbol, ...],
    relocations: tuple[Relocation, ...],
) -> tuple[Section, ...]:
    if not symbols and not relocations:
        return sections
    numbers = {section.name: index for index, section in enumerate(sections, 1)} | SPECIAL_SECTIONS
    ordered = sorted(symbols, key=lambda symbol: symbol.info >> 4 != 0)
    local_count = 1 + sum(symbol.info >> 4 == 0 for symbol in ordered)
    indexes = {symbol.name: index for index, symbol in enumerate(ordered, 1)}
    strings, table = b"\0", bytes(24)
    for symbol in ordered:
        fields = (len(strings), symbol.info, 0, numbers[symbol.section], symbol.value, symbol.size)
        table += struct.pack(order + "IBBHQQ", *fields)
        strings += symbol.name.encode() + b"\0"
    targets = tuple(dict.fromkeys(relocation.section for relocation in relocations))
    symtab_number = len(sections) + len(targets) + 1
    relas = []
    for target in targets:
        data = b"".join(
            struct.pack(order + "QQq", item.offset, indexes[item.symbol] << 32 | item.type, item.addend)
            for item in relocations
            if item.section == target
        )
        link = (symtab_number, numbers[target])
        relas.append(Section(".rela" + target, data, SHT_RELA, SHF_INFO_LINK, 0, *link, 24, 8))
    symtab = Section(".symtab", table, SHT_SYMTAB, 0, 0, symtab_number + 1, local_count, 24, 8)
    return (*sections, *relas, symtab, Section(".strtab", strings, SHT_STRTAB))


def _place(sections: tuple[Section, ...], position: int) -> tuple[tuple[int, ...], int]:
    """Return the file offsets, congruent to the addresses modulo a page, and the end of the data."""
    offsets = []
    for section in sections:
        if section.flags & SHF_ALLOC and section.addr:
            position += (section.addr - position) % PAGE_SIZE
        else:
            position += -position % section.align
        offsets.append(position)
        position += len(section.data)
    return tuple(offsets), position


def _program_header(file: _File, segment: Segment) -> bytes:
    chosen = [
        (section, offset)
        for section, offset in zip(file.sections, file.offsets, strict=True)
        if section.name in segment.sections
    ]
    (first, offset), (last, last_offset) = chosen[0], chosen[-1]
    start = 0 if segment.headers else offset
    vaddr = first.addr - (offset - start)
    file_size = last_offset + len(last.data) - start
    memory_size = last.addr + max(len(last.data), last.nobits_size) - vaddr
    sizes = (file_size, memory_size, segment.align)
    return struct.pack(file.order + "IIQQQQQQ", segment.type, segment.flags, start, vaddr, vaddr, *sizes)


def _section_headers(file: _File) -> bytes:
    out = bytes(SHDR_SIZE)
    name_offset = 1
    for section, offset in zip(file.sections, file.offsets, strict=True):
        out += struct.pack(
            file.order + "IIQQQQIIQQ",
            *(name_offset, section.type, section.flags, section.addr, offset),
            *(max(len(section.data), section.nobits_size), section.link, section.info),
            *(section.align, section.entsize),
        )
        name_offset += len(section.title or section.name) + 1
    return out


def eh_frame_hdr(
    hdr_vaddr: int,
    eh_frame_vaddr: int,
    table: tuple[tuple[int, int], ...],
    *,
    little_endian: bool = True,
) -> bytes:
    """Return .eh_frame_hdr as GNU ld writes it; `table` holds pairs (function vaddr, FDE vaddr)."""
    order = "<" if little_endian else ">"
    out = bytes((1, 0x1B, 0x03, 0x3B)) + struct.pack(order + "iI", eh_frame_vaddr - hdr_vaddr - 4, len(table))
    for function_vaddr, fde_vaddr in sorted(table):
        out += struct.pack(order + "ii", function_vaddr - hdr_vaddr, fde_vaddr - hdr_vaddr)
    return out


def note(owner: bytes, kind: int, content: bytes = b"", order: str = "<") -> bytes:
    """Return a note, padded as in a section of alignment 4."""
    head = struct.pack(order + "III", len(owner) + 1, len(content), kind)
    return head + b"".join(part + bytes(-len(part) % 4) for part in (owner + b"\0", content))


def patched(data: bytes, offset: int, code: str, value: int) -> bytes:
    """Return a little-endian file with another value, packed as `struct` does, without the bits that are too many."""
    out = bytearray(data)
    struct.pack_into("<" + code, out, offset, value % (1 << 8 * struct.calcsize(code)))
    return bytes(out)


def header_of_section(data: bytes, index: int) -> int:
    """Return the file offset of a section header."""
    return int(struct.unpack_from("<Q", data, 40)[0]) + SHDR_SIZE * index
