# SPDX-License-Identifier: Apache-2.0
"""An ELF file as an `ElfImage`: its sections, segments, symbols, and bytes by address.

A relocatable object has no addresses. The image assigns addresses to its allocated sections, one after the other, and
relocations are applied against these. Each address then identifies one byte, and readers of CFI need not distinguish
objects from linked files. `ElfImage.place` maps such an address back to a section and an offset.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from cfi2sframe.abi import Arch, arch_of_elf
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import (
    SYMBOL_SIZE,
    Buffer,
    ElfSection,
    FileHeader,
    Headers,
    ProgramHeader,
    StringTable,
    machine_name,
    parse_file_header,
    parse_headers,
)
from cfi2sframe.elf.sections import CodeRange, assigned_vaddrs, code_ranges
from cfi2sframe.elf.segments import SegmentMap
from cfi2sframe.errors import ElfError, ForeignError
from cfi2sframe.text import shown_name


class SectionOffset(NamedTuple):
    """An address as in a relocation: the index and name of a section, and an offset in bytes from its start.

    In a linked file the offset is the virtual address itself. Outside of all sections the name is empty.
    """

    section_index: int
    section_name: str
    offset: int


class Symbol(NamedTuple):
    """A symbol. `vaddr` is None when the symbol is undefined, or the file has no section of its index."""

    name: str
    vaddr: int | None
    size: int
    type: int
    section_index: int


class ElfImage:
    """A parsed ELF64 file of an ABI that SFrame defines.

    Raises `ForeignError` when SFrame is not defined for the file, `ElfError` when its headers are damaged. Methods that
    read bytes of a large file raise `ChangedError` when it was truncated while it was open.
    """

    name: str
    """The file's name in messages."""
    data: FileData
    """Its bytes, in memory or read on demand."""
    arch: Arch
    is_relocatable: bool
    """True for an object."""
    debug_file: "ElfImage | None"
    """The separate debug file, one more source of CFI; None until a user sets it."""

    def __init__(self, data: FileData, name: str) -> None:
        self.name = name
        self.data = data
        self.debug_file = None
        self.header: FileHeader = parse_file_header(data)
        self.byte_order = self.header.byte_order
        self.arch = self._find_arch()
        if self.header.type == c.ET_CORE:
            raise ForeignError("a core dump, which has no CFI of its own; cfi2sframe trace prints its stacks")
        if self.header.type not in (c.ET_REL, c.ET_EXEC, c.ET_DYN):
            raise ForeignError(f"ELF type {self.header.type} is neither an object, an executable nor a library")
        self.is_relocatable = self.header.type == c.ET_REL
        self.headers: Headers = parse_headers(data, self.header)
        # Segments and sections are in the order of their tables.
        self.segments: tuple[ProgramHeader, ...] = self.headers.segments
        self.segment_map = SegmentMap(self.segments)
        self._code_map = SegmentMap(p for p in self.segments if p.flags & c.PF_X)
        self.sections: tuple[ElfSection, ...] = self._read_sections()
        loaded = (s for s in self.sections if s.flags & c.SHF_ALLOC and s.size and s.vaddr)
        self._by_vaddr = sorted(loaded, key=lambda s: s.vaddr)
        self._start_vaddrs = [s.vaddr for s in self._by_vaddr]
        self.code_ranges: tuple[CodeRange, ...] = code_ranges(
            self.sections, self.segments, is_relocatable=self.is_relocatable
        )
        self._symbol_vaddrs: dict[int, tuple[int | None, ...]] = {}
        #: The first SHT_SYMTAB_SHNDX of each symbol table, by the table's index.
        self._index_lists = {s.link: s for s in reversed(self.sections) if s.type == c.SHT_SYMTAB_SHNDX}
        self._code_starts = [r.start_vaddr for r in self.code_ranges]

    def __repr__(self) -> str:
        kind = "object" if self.is_relocatable else "linked file"
        return f"<ElfImage {self.name}: {self.arch.name} {kind}, {len(self.data):,} bytes>"

    def _find_arch(self) -> Arch:
        arch = arch_of_elf(self.header.machine, self.byte_order)
        if arch is None:
            raise ForeignError(f"SFrame is not defined for {machine_name(self.header.machine, self.byte_order)}")
        return arch

    def _read_sections(self) -> tuple[ElfSection, ...]:
        sections = self.headers.sections
        if not self.is_relocatable:
            return sections
        vaddrs = assigned_vaddrs(sections)
        return tuple(section._replace(vaddr=vaddrs[section.index]) for section in sections)

    @property
    def loads(self) -> tuple[ProgramHeader, ...]:
        """The PT_LOAD entries, in address order."""
        return self.segment_map.loads

    # Bytes

    def close(self) -> None:
        """Close the file now, if it is read on demand; by default it is closed with the last reference to its bytes."""
        if not isinstance(self.data, Buffer):
            self.data.close()

    def section_bytes(self, section: ElfSection) -> bytes:
        """Return a section's bytes as they are in the file; none for NOBITS.

        Raises `ElfError` when they leave the file.
        """
        if section.type == c.SHT_NOBITS:
            return b""
        if section.file_offset + section.size > len(self.data):
            place = f"{section.size} bytes at file offset 0x{section.file_offset:x}"
            raise ElfError(f"truncated: {place} extend past the end of the file", section.name)
        return bytes(self.data[section.file_offset : section.file_offset + section.size])

    def records(self, section: ElfSection, form: str) -> Iterator[tuple[int, ...]]:
        """Iterate over a section as whole records of a form that `struct` knows. Raises as `section_bytes` does."""
        record = struct.Struct(self.byte_order + form)
        data = memoryview(self.section_bytes(section))
        return record.iter_unpack(data[: len(data) // record.size * record.size])

    def bytes_at(self, vaddr: int, size: int) -> bytes | None:
        """Return `size` bytes of a linked file at a virtual address; None when no PT_LOAD has them all in the file."""
        offset = self.segment_map.offset_of(vaddr, size)
        data = None if offset is None else bytes(self.data[offset : offset + size])
        return data if data is not None and len(data) == size else None

    def code_bytes(self, code: CodeRange, start_vaddr: int, end_vaddr: int) -> bytes:
        """Return the bytes at addresses in a code range, also in an object; fewer where the file does not have them."""
        if not code.section_index:
            return self.bytes_at(start_vaddr, end_vaddr - start_vaddr) or b""
        section = self.sections[code.section_index]
        if section.type == c.SHT_NOBITS:
            return b""
        offset = section.file_offset + start_vaddr - section.vaddr
        return bytes(self.data[offset : offset + end_vaddr - start_vaddr])

    # Sections and addresses

    def sections_named(self, name: str) -> Iterator[ElfSection]:
        """Yield the sections of that name that have bytes in the file, in file order."""
        return (s for s in self.sections if s.name == name and s.type != c.SHT_NOBITS and s.size)

    @property
    def sframe_section(self) -> ElfSection | None:
        """The SFrame section, by its header (see `ElfSection.is_sframe`); it may be empty."""
        return next((section for section in self.sections if section.is_sframe), None)

    @property
    def sframe_segment(self) -> ProgramHeader | None:
        """The PT_GNU_SFRAME entry of a linked file."""
        return next((segment for segment in self.segments if segment.type == c.PT_GNU_SFRAME), None)

    @property
    def is_debug_file(self) -> bool:
        """True if this is a separate debug file, in which code has no bytes."""
        return any(section.is_code and section.type == c.SHT_NOBITS for section in self.sections)

    @property
    def has_sframe(self) -> bool:
        """True if there is an SFrame section, or a program header for one."""
        return self.sframe_section is not None or self.sframe_segment is not None

    def code_range_of(self, vaddr: int) -> CodeRange | None:
        """Return the executable range that holds an address."""
        index = bisect_right(self._code_starts, vaddr) - 1
        if index >= 0 and vaddr < self.code_ranges[index].end_vaddr:
            return self.code_ranges[index]
        return None

    def code_ends_of(self, vaddrs: Iterable[int]) -> Iterator[int | None]:
        """Yield, for each address, the end of the last code range in its executable segment; None where no code is.

        In an object, that is the end of the address's own code range. Neighbors in one range share a look-up.
        """
        code: CodeRange | None = None
        end: int | None = None
        for vaddr in vaddrs:
            if code is None or not code.start_vaddr <= vaddr < code.end_vaddr:
                code = self.code_range_of(vaddr)
                end = None if code is None else self._end_of_code_from(code)
            yield end

    def _end_of_code_from(self, code: CodeRange) -> int:
        # Not the end of the segment, which moves when the segment gets an .sframe.
        end = self._code_segment_end(code.start_vaddr)
        last = self.code_ranges[bisect_left(self._code_starts, end) - 1]
        return max(code.end_vaddr, min(last.end_vaddr, end))

    def may_execute(self, vaddr: int) -> bool:
        """Return whether an address lies in an executable section or, in a linked file, in an executable segment."""
        return self.code_range_of(vaddr) is not None or vaddr < self._code_segment_end(vaddr)

    def _code_segment_end(self, vaddr: int) -> int:
        """Return the end of the last executable segment that starts at or before an address; 0 in objects."""
        load = self._code_map.last_from(vaddr)
        return 0 if load is None or self.is_relocatable else load.end_vaddr

    def not_code(self, starts: Iterable[int], ends: Iterable[int]) -> list[int]:
        """Return the numbers of the ranges that do not start in code, or end past it."""
        return [
            number
            for number, (code_end, end) in enumerate(zip(self.code_ends_of(starts), ends, strict=True))
            if code_end is None or end > code_end
        ]

    def section_at(self, vaddr: int) -> ElfSection | None:
        """Return the allocated section that holds an address."""
        index = bisect_right(self._start_vaddrs, vaddr) - 1
        if index >= 0 and vaddr < self._by_vaddr[index].end_vaddr:
            return self._by_vaddr[index]
        return None

    def place(self, vaddr: int) -> SectionOffset:
        """Return the section of an address, and the offset in it (see `SectionOffset`)."""
        section = self.section_at(vaddr)
        if section is None:
            return SectionOffset(0, "", vaddr)
        return SectionOffset(section.index, section.name, vaddr - section.vaddr if self.is_relocatable else vaddr)

    def place_text(self, vaddr: int) -> str:
        """Return an address as users know it: in an object, `SECTION+OFFSET`."""
        place = self.place(vaddr)
        return f"{shown_name(place.section_name)}+0x{place.offset:x}" if self.is_relocatable else f"0x{place.offset:x}"

    def end_of_segments(self) -> int:
        """Return the first address past the last PT_LOAD; 0 without any."""
        return max((load.end_vaddr for load in self.loads), default=0)

    # Symbols

    @property
    def symbol_tables(self) -> tuple[ElfSection, ...]:
        """The .symtab and the .dynsym, where there are; a file has at most one of each kind (gABI, "Sections")."""
        kinds = (c.SHT_SYMTAB, c.SHT_DYNSYM)
        return tuple(table for kind in kinds for table in [s for s in self.sections if s.type == kind][:1])

    def symbols(self, section: ElfSection, values: Container[int] | None = None) -> Iterator[Symbol]:
        """Yield the entries of a symbol table, the null symbol included, or those with one of these st_values.

        Raises `ElfError` when the table leaves the file.
        """
        strings = b""
        if section.link < len(self.sections):
            strings = self.section_bytes(self.sections[section.link])
        names = StringTable(strings)
        for fields, index, vaddr in self._raw_symbols(section, values):
            yield Symbol(names.at(fields[0]), vaddr, fields[5], fields[1] & 0xF, index)

    def symbol_vaddrs(self, section: ElfSection) -> tuple[int | None, ...]:
        """Return the addresses of a symbol table's entries; None where `Symbol.vaddr` is.

        Raises `ElfError` when the table leaves the file. Cached, since every relocated section needs it.
        """
        vaddrs = self._symbol_vaddrs.get(section.index)
        if vaddrs is None:
            vaddrs = self._symbol_vaddrs[section.index] = tuple(vaddr for _, _, vaddr in self._raw_symbols(section))
        return vaddrs

    def _raw_symbols(
        self, section: ElfSection, values: Container[int] | None = None
    ) -> Iterator[tuple[tuple[int, ...], int, int | None]]:
        """Yield each entry's fields as stored, its section's index, and its address."""
        records = self.records(section, "IBBHQQ")
        extended = self._extended_indices(section.index, section.size // SYMBOL_SIZE)
        for number, fields in enumerate(records):
            _name_offset, _info, _other, index, value, _size = fields
            if values is not None and value not in values:
                continue
            if index == c.SHN_XINDEX and number < len(extended):
                # Numbers from SHN_LORESERVE on are plain indices there.
                index = extended[number]
                vaddr = self._vaddr_in_section(index, value)
            elif index == c.SHN_ABS:
                vaddr = value
            else:
                vaddr = self._vaddr_in_section(index, value) if index < c.SHN_LORESERVE else None
            yield fields, index, vaddr

    def _extended_indices(self, symtab_index: int, count: int) -> tuple[int, ...]:
        """Return the section indices in a symbol table's SHT_SYMTAB_SHNDX, at most `count`: tables may share bytes."""
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
            # A symbol in the SFrame section has no address: the section is replaced.
            return None
        return section.vaddr + value if section.flags & c.SHF_ALLOC else value

    def names_of(self, vaddrs: Iterable[int]) -> dict[int, str]:
        """Return the names of the functions that start at these addresses, where symbol tables have them.

        A function symbol is preferred to others.
        """
        ranks = {c.STT_FUNC: 0, c.STT_GNU_IFUNC: 0, c.STT_SECTION: None}
        wanted = set(vaddrs)
        best = self._best_symbols(lambda symbol: ranks.get(symbol.type, 1), wanted) if wanted else {}
        return {vaddr: symbol.name for vaddr, symbol in best.items()}

    def functions(self, within: Container[int] | None = None) -> dict[int, Symbol]:
        """Return the functions that symbols name, by address; with `within`, those that start at its addresses.

        These are symbols of functions, and labels with a size, as some assembly has for its functions. At one address,
        a function with a size is preferred to one without, and that to a label.
        """

        def rank(symbol: Symbol) -> int | None:
            if symbol.type in (c.STT_FUNC, c.STT_GNU_IFUNC):
                return 0 if symbol.size else 1
            return 2 if symbol.type == c.STT_NOTYPE and symbol.size else None

        return self._best_symbols(rank, within)

    def _best_symbols(self, rank: Callable[[Symbol], int | None], within: Container[int] | None) -> dict[int, Symbol]:
        """Return the named symbol of the lowest rank at each address, without symbols whose rank is None.

        Of equal ranks the first counts, and .symtab precedes .dynsym. A damaged table counts up to the damage.
        """
        best: dict[int, tuple[int, Symbol]] = {}
        # In a linked file st_value is the address, so most entries of a large table can be skipped unread.
        values = None if self.is_relocatable else within
        for table in self.symbol_tables:
            with suppress(ElfError):
                for symbol in self.symbols(table, values):
                    if symbol.vaddr is None or not symbol.name or (within is not None and symbol.vaddr not in within):
                        continue
                    own = rank(symbol)
                    if own is not None and (symbol.vaddr not in best or own < best[symbol.vaddr][0]):
                        best[symbol.vaddr] = own, symbol
        return {vaddr: symbol for vaddr, (_, symbol) in best.items()}
