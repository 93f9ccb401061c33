# SPDX-License-Identifier: Apache-2.0
"""The only reader of ELF structure: a file becomes an `ElfImage` with sections, segments, symbols and CFI bytes.

Knows nothing of what CFI or SFrame bytes mean.

A relocatable object has no addresses. The image lays its allocated sections out one behind the other, as a linker
would, and applies relocations against that layout; so each address names one place, and the readers of CFI need no
second way to work. `ElfImage.place` turns such an address back into a section and an offset.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.arch import Arch, arch_of_elf
from cfi2sframe.budget import Budget
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.records import (
    Buffer,
    FileHeader,
    ProgramHeader,
    is_sframe_section,
    machine_name,
    parse_file_header,
    parse_program_headers,
    parse_section_headers,
    section_names_index,
)
from cfi2sframe.elf.strings import StringTable
from cfi2sframe.errors import ElfError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from cfi2sframe.elf.records import FileData

_FIRST_SYNTHETIC_VADDR = 0x10000
#: A gap between an object's sections, so that the end of one is never the start of the next.
_SYNTHETIC_GAP_SIZE = 64
_ADDRESS_END = 1 << 64


class ElfSection(NamedTuple):
    """A section. `vaddr` is its address; in a relocatable object, the one that the image gave it (0: not allocated)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    name: str
    type: int
    flags: int
    vaddr: int
    file_offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    @property
    def end_vaddr(self) -> int:
        """The first address past the section."""
        return self.vaddr + self.size

    @property
    def is_code(self) -> bool:
        """Whether the section holds instructions that are loaded."""
        return (self.flags & (c.SHF_ALLOC | c.SHF_EXECINSTR)) == c.SHF_ALLOC | c.SHF_EXECINSTR

    @property
    def is_sframe(self) -> bool:
        """Whether this is an SFrame section."""
        return is_sframe_section(self.type, self.name)


class CodeRange(NamedTuple):
    """A range of addresses that holds instructions: an executable section, or segment where there are no sections."""

    name: str
    section_index: int
    start_vaddr: int
    end_vaddr: int


class Place(NamedTuple):
    """An address as people and relocations name it: section index and name, and an offset in it.

    In a linked file the offset is the address itself and the name may be empty.
    """

    section_index: int
    section_name: str
    offset: int


class Symbol(NamedTuple):
    """A symbol; `vaddr` is None when its section is none of the file's allocated ones."""

    name: str
    vaddr: int | None
    size: int
    type: int
    section_index: int


class ElfImage:
    """A parsed ELF64 file of an ABI that SFrame defines.

    `name` is what messages call the file; `data` its bytes (in memory, or read when they are asked for); sections and
    segments are tuples in file order. Raises `ElfError` when the file is none of those. What reads bytes of a large
    file raises `ChangedError` when somebody has truncated it by then. `budget` counts what is
    computed from it; by default the bytes of `data` pay for it.
    """

    def __init__(self, data: FileData, name: str, budget: Budget | None = None) -> None:
        self.name = name
        self.data = data
        self.budget = Budget(len(data)) if budget is None else budget
        self.header: FileHeader = parse_file_header(data)
        self.byte_order = self.header.byte_order
        self.arch: Arch = self._find_arch()
        if self.header.type not in (c.ET_REL, c.ET_EXEC, c.ET_DYN):
            raise UnfitError(f"ELF type {self.header.type} is neither an object, an executable nor a library")
        self.is_relocatable = self.header.type == c.ET_REL
        self.segments: tuple[ProgramHeader, ...] = tuple(parse_program_headers(data, self.header))
        self._loads = sorted((p for p in self.segments if p.type == c.PT_LOAD), key=lambda p: p.vaddr)
        self._load_starts = [p.vaddr for p in self._loads]
        self._code_loads = [p for p in self._loads if p.flags & c.PF_X]
        self._code_load_starts = [p.vaddr for p in self._code_loads]
        self.sections: tuple[ElfSection, ...] = self._read_sections()
        loaded = (s for s in self.sections if s.flags & c.SHF_ALLOC and s.size and s.vaddr)
        self._by_vaddr = sorted(loaded, key=lambda s: s.vaddr)
        self._start_vaddrs = [s.vaddr for s in self._by_vaddr]
        self.code_ranges: tuple[CodeRange, ...] = self._find_code_ranges()
        self._symbol_vaddrs: dict[int, tuple[int | None, ...]] = {}
        #: The first SHT_SYMTAB_SHNDX of each symbol table, by the table's index.
        self._index_lists = {s.link: s for s in reversed(self.sections) if s.type == c.SHT_SYMTAB_SHNDX}
        self._code_starts = [r.start_vaddr for r in self.code_ranges]

    def _find_arch(self) -> Arch:
        arch = arch_of_elf(self.header.machine, self.byte_order)
        if arch is None:
            raise UnfitError(f"SFrame is not defined for {machine_name(self.header.machine, self.byte_order)}")
        return arch

    def _read_sections(self) -> tuple[ElfSection, ...]:
        headers = parse_section_headers(self.data, self.header)
        if not headers:
            return ()
        strings = headers[section_names_index(self.header, headers)]
        data = b"" if strings.type != c.SHT_STRTAB else self._file_bytes(strings.file_offset, strings.size)
        names = StringTable(data, "section names")
        sections = [
            ElfSection(index, names.at(header.name_offset), *header[1:]) for index, header in enumerate(headers)
        ]
        if self.is_relocatable:
            vaddrs = _synthetic_vaddrs(sections)
            sections = [section._replace(vaddr=vaddrs[section.index]) for section in sections]
        return tuple(sections)

    def _find_code_ranges(self) -> tuple[CodeRange, ...]:
        ranges = [CodeRange(s.name, s.index, s.vaddr, s.end_vaddr) for s in self.sections if s.is_code and s.size]
        if not ranges and not self.is_relocatable:
            ranges = [
                CodeRange(f"segment {index}", 0, p.vaddr, p.vaddr + p.file_size)
                for index, p in enumerate(self.segments)
                if p.type == c.PT_LOAD and p.flags & c.PF_X
            ]
        ranges.sort(key=lambda r: r.start_vaddr)
        return tuple(_without_overlap(ranges))

    # Bytes

    def close(self) -> None:
        """Close the file, if it is open; without this it stays so while something refers to the image."""
        if not isinstance(self.data, Buffer):
            self.data.close()

    def _file_bytes(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes at `offset`; fewer where the file ends."""
        return bytes(self.data[offset : offset + size])

    def section_bytes(self, section: ElfSection) -> bytes:
        """Return a section's bytes as they are in the file; none for NOBITS.

        Raises `ElfError` when they leave the file.
        """
        if section.type == c.SHT_NOBITS:
            return b""
        if section.file_offset + section.size > len(self.data):
            raise ElfError(
                f"truncated: {section.size} bytes at file offset 0x{section.file_offset:x} leave the file",
                section.name,
            )
        return self._file_bytes(section.file_offset, section.size)

    def bytes_at(self, vaddr: int, size: int) -> bytes | None:
        """Return `size` bytes of a linked file at an address; None when its segments do not hold them in the file."""
        index = bisect_right(self._load_starts, vaddr) - 1
        if index < 0:
            return None
        segment = self._loads[index]
        if vaddr + size > segment.vaddr + segment.file_size:
            return None
        data = self._file_bytes(segment.file_offset + vaddr - segment.vaddr, size)
        return data if len(data) == size else None

    # Places

    def sections_named(self, name: str) -> Iterator[ElfSection]:
        """Yield the sections of that name that have bytes in the file, in file order."""
        return (s for s in self.sections if s.name == name and s.type != c.SHT_NOBITS and s.size)

    def code_range_of(self, vaddr: int) -> CodeRange | None:
        """Return the executable range that holds an address."""
        index = bisect_right(self._code_starts, vaddr) - 1
        if index >= 0 and vaddr < self.code_ranges[index].end_vaddr:
            return self.code_ranges[index]
        return None

    def code_index_of(self, vaddr: int) -> int:
        """Return the index of the executable range that holds an address, or of the first one behind it."""
        index = bisect_right(self._code_starts, vaddr) - 1
        return index if index >= 0 and vaddr < self.code_ranges[index].end_vaddr else index + 1

    def holds_code(self, start_vaddr: int, end_vaddr: int) -> bool:
        """Whether a range starts in an executable section and, in a linked file, stays inside an executable segment."""
        code = self.code_range_of(start_vaddr)
        return code is not None and end_vaddr <= max(code.end_vaddr, self._code_segment_end(start_vaddr))

    def may_execute(self, vaddr: int) -> bool:
        """Whether an address lies in an executable section or, in a linked file, in an executable segment."""
        return self.code_range_of(vaddr) is not None or vaddr < self._code_segment_end(vaddr)

    def _code_segment_end(self, vaddr: int) -> int:
        """Return the end of the last executable segment that starts at or before an address; 0 in objects."""
        index = bisect_right(self._code_load_starts, vaddr) - 1
        return self._code_loads[index].end_vaddr if index >= 0 and not self.is_relocatable else 0

    def not_code(self, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
        """Return which ranges `holds_code` denies, by their places in the columns; `starts` ascend."""
        denied: list[int] = []
        first = 0
        while first < len(starts):
            # Functions come by the thousands from one section.
            code = self.code_range_of(starts[first])
            last = first + 1 if code is None else bisect_left(starts, code.end_vaddr, first)
            if code is None or max(ends[first:last]) > code.end_vaddr:
                denied += [place for place in range(first, last) if not self.holds_code(starts[place], ends[place])]
            first = last
        return denied

    def section_at(self, vaddr: int) -> ElfSection | None:
        """Return the allocated section that holds an address."""
        index = bisect_right(self._start_vaddrs, vaddr) - 1
        if index >= 0 and vaddr < self._by_vaddr[index].end_vaddr:
            return self._by_vaddr[index]
        return None

    def place(self, vaddr: int) -> Place:
        """Return the name of an address; for an object, its section and the offset in it."""
        section = self.section_at(vaddr)
        if section is None:
            return Place(0, "", vaddr)
        return Place(section.index, section.name, vaddr - section.vaddr if self.is_relocatable else vaddr)

    def end_of_segments(self) -> int:
        """Return the first address past the last PT_LOAD; 0 without any."""
        return max((p.end_vaddr for p in self.segments if p.type == c.PT_LOAD), default=0)

    # Symbols

    def symbols(self, section: ElfSection, values: Container[int] | None = None) -> Iterator[Symbol]:
        """Yield the entries of a symbol table, the null symbol included, or those with one of these st_values.

        Raises `ElfError` when the table leaves the file.
        """
        strings = b""
        if section.link < len(self.sections):
            strings = self.section_bytes(self.sections[section.link])
        names = StringTable(strings, section.name)
        for fields, index, vaddr in self._raw_symbols(section, values):
            yield Symbol(names.at(fields[0]), vaddr, fields[5], fields[1] & 0xF, index)

    def symbol_vaddrs(self, section: ElfSection) -> tuple[int | None, ...]:
        """Return the addresses of a symbol table's entries; None where `Symbol.vaddr` would be.

        Raises `ElfError` when the table leaves the file. Read once: every relocated section asks for it.
        """
        known = self._symbol_vaddrs.get(section.index)
        if known is None:
            known = self._symbol_vaddrs[section.index] = tuple(vaddr for _, _, vaddr in self._raw_symbols(section))
        return known

    def _raw_symbols(
        self, section: ElfSection, values: Container[int] | None = None
    ) -> Iterator[tuple[tuple[int, ...], int, int | None]]:
        """Yield each entry's fields as stored, its section's index, and its address."""
        data = self.section_bytes(section)
        extended = self._extended_indices(section.index, len(data) // 24)
        usable = memoryview(data)[: len(data) // 24 * 24]
        for number, fields in enumerate(struct.iter_unpack(self.byte_order + "IBBHQQ", usable)):
            _name_offset, _info, _other, index, value, _size = fields
            if values is not None and value not in values:
                continue
            if index == c.SHN_XINDEX and number < len(extended):
                # Read from there, a number that is reserved otherwise is a section's.
                index = extended[number]
                vaddr = self._vaddr_in_section(index, value)
            elif index == c.SHN_ABS:
                vaddr = value
            else:
                vaddr = self._vaddr_in_section(index, value) if index < c.SHN_LORESERVE else None
            yield fields, index, vaddr

    def _extended_indices(self, symtab_index: int, count: int) -> tuple[int, ...]:
        """Return the section indices of up to `count` symbols; tables may share their bytes, so no more are read."""
        section = self._index_lists.get(symtab_index)
        if section is None:
            return ()
        data = self.section_bytes(section._replace(size=min(section.size, 4 * count)))
        return struct.unpack_from(f"{self.byte_order}{len(data) // 4}I", data)

    def _vaddr_in_section(self, index: int, value: int) -> int | None:
        if index == c.SHN_UNDEF or index >= len(self.sections):
            return None
        if not self.is_relocatable:
            return value
        section = self.sections[index]
        if section.is_sframe:
            # Nothing is in there, and whatever replaces it lies elsewhere.
            return None
        return section.vaddr + value if section.flags & c.SHF_ALLOC else value

    def names_of(self, vaddrs: Iterable[int]) -> dict[int, str]:
        """Return the names of the functions that start at these addresses, where symbol tables know them.

        A function symbol wins over others, a symbol of .symtab over one of .dynsym, the first over later ones. A table
        that is damaged has no names: they are a courtesy.
        """
        wanted = set(vaddrs)
        found: dict[int, tuple[int, str]] = {}
        if not wanted:
            return {}
        # In a linked file st_value is the address, and most of a large table can be passed over at once.
        values = None if self.is_relocatable else wanted
        for table_rank, table_type in enumerate((c.SHT_SYMTAB, c.SHT_DYNSYM)):
            # There is one of each kind (gABI, "Sections").
            table = next((section for section in self.sections if section.type == table_type), None)
            if table is None:
                continue
            try:
                for symbol in self.symbols(table, values):
                    if symbol.vaddr not in wanted or not symbol.name or symbol.type == c.STT_SECTION:
                        continue
                    rank = table_rank + (0 if symbol.type in (c.STT_FUNC, c.STT_GNU_IFUNC) else 2)
                    if symbol.vaddr not in found or rank < found[symbol.vaddr][0]:
                        found[symbol.vaddr] = (rank, symbol.name)
            except ElfError:
                continue
        return {vaddr: name for vaddr, (_, name) in found.items()}


def _synthetic_vaddrs(sections: Sequence[ElfSection]) -> list[int]:
    """Return addresses of an object's sections, given one behind the other to those that are loaded; 0 for others."""
    vaddrs = [0] * len(sections)
    cursor = _FIRST_SYNTHETIC_VADDR
    # SFrame sections come last: what else there is has the same addresses with one, without one, and with another.
    for section in sorted(sections, key=lambda section: section.is_sframe):
        if section.flags & c.SHF_ALLOC:
            alignment = max(1, section.alignment)
            vaddrs[section.index] = cursor = (cursor + alignment - 1) // alignment * alignment
            cursor += section.size + _SYNTHETIC_GAP_SIZE
            if cursor > _ADDRESS_END:
                raise ElfError("the sections need more addresses than there are")
    return vaddrs


def _without_overlap(ranges: Iterable[CodeRange]) -> Iterator[CodeRange]:
    """Yield pieces of ascending ranges so that each address is in one of them: the range that starts last has it."""
    open_ranges: list[CodeRange] = []
    position = 0
    for current in ranges:
        while open_ranges and open_ranges[-1].end_vaddr <= current.start_vaddr:
            last = open_ranges.pop()
            if position < last.end_vaddr:
                yield last._replace(start_vaddr=position)
                position = last.end_vaddr
        if open_ranges and position < current.start_vaddr:
            yield open_ranges[-1]._replace(start_vaddr=position, end_vaddr=current.start_vaddr)
        open_ranges.append(current)
        position = current.start_vaddr
    for last in reversed(open_ranges):
        if position < last.end_vaddr:
            yield last._replace(start_vaddr=position)
            position = last.end_vaddr
