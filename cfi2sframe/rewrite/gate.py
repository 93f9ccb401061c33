# SPDX-License-Identifier: Apache-2.0
"""What of a linked ELF file matters for putting a segment into it, and the files that are better left alone.

`parse_layout` is the gate: a file that passes is described completely by its headers, so that bytes behind
the loaded part may move by whole multiples of their alignment without anybody noticing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import (
    ET_CORE,
    ET_DYN,
    ET_EXEC,
    ET_REL,
    PN_XNUM,
    PT_GNU_PROPERTY,
    PT_GNU_SFRAME,
    PT_INTERP,
    PT_LOAD,
    PT_NOTE,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_TLS,
    SHN_LORESERVE,
    SHT_NOBITS,
    SHT_NULL,
    SHT_STRTAB,
)
from cfi2sframe.elf.contents import Joined, part_of
from cfi2sframe.elf.records import (
    FILE_HEADER_SIZE,
    PROGRAM_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SFRAME_NAME,
    FileHeader,
    ProgramHeader,
    SectionHeader,
    is_sframe_section,
    parse_file_header,
    parse_program_headers,
    parse_section_headers,
    section_names_index,
)
from cfi2sframe.elf.strings import StringTable, shown_name
from cfi2sframe.errors import ElfError, EmbedError

if TYPE_CHECKING:
    from cfi2sframe.elf.records import ByteOrder, FileData

#: Linux maps no file with more than 64 KiB of program headers.
_MAX_SEGMENT_COUNT = (1 << 16) // PROGRAM_HEADER_SIZE
#: What moves keeps its alignment, so padding may grow to this size (the largest pages in use are as large as 2 MiB).
_MAX_ALIGNMENT = 1 << 21
#: The largest pages of any processor. A new segment gets the largest alignment of all.
_MAX_LOAD_ALIGNMENT = 1 << 30
#: What lies in a file beside sections, where these are known by their indices.
_ELF_HEADER, _PROGRAM_HEADERS, _SECTION_HEADERS = -3, -2, -1
_TABLES = {
    _ELF_HEADER: "the ELF header",
    _PROGRAM_HEADERS: "the program headers",
    _SECTION_HEADERS: "the section headers",
}
#: Segments whose content decides about what happens to them.
_READ_TYPES = frozenset({PT_INTERP, PT_NOTE, PT_GNU_PROPERTY})
#: In how many segments a section may be, on average; it is in two or three. The same for bytes of `_READ_TYPES`.
_MAX_OVERLAP = 16
_OVERLAP_ALLOWANCE = 4096
_MAX_FILE_OFFSET = 1 << 63


class Layout(NamedTuple):
    """A linked file: its bytes, its headers, and where its loaded and its described bytes end."""

    data: FileData
    header: FileHeader
    sections: tuple[SectionHeader, ...]
    names: tuple[str, ...]
    segments: tuple[ProgramHeader, ...]
    names_index: int
    #: End (file offset) of everything that some segment or allocated section has in the file.
    loaded_end: int
    #: The PT_LOAD entries in table order, which `parse_layout` found to be address order.
    loads: tuple[ProgramHeader, ...]
    #: Start, end and index of each section that has bytes in the file, in file order; `parse_layout` found them apart.
    contents: tuple[tuple[int, int, int], ...]

    @property
    def order(self) -> ByteOrder:
        """`<` or `>`, as `struct` spells it."""
        return self.header.byte_order

    @property
    def table_end(self) -> int:
        """File offset of the first byte behind the program header table."""
        return self.header.program_headers_offset + PROGRAM_HEADER_SIZE * len(self.segments)

    def sframe_index(self) -> int | None:
        """Return the index of the section that holds SFrame data, by type or by name."""
        for index, section in enumerate(self.sections):
            if is_sframe_section(section.type, self.names[index]):
                return index
        return None

    def sframe_segment(self) -> ProgramHeader | None:
        """Return the PT_GNU_SFRAME entry, if there is one."""
        return next((segment for segment in self.segments if segment.type == PT_GNU_SFRAME), None)

    def has_content(self, index: int) -> bool:
        """Say whether section `index` occupies bytes of the file."""
        section = self.sections[index]
        return section.type not in (SHT_NULL, SHT_NOBITS) and section.size > 0

    def indices_within(self, start: int, end: int) -> list[int]:
        """Return the indices of the sections that have bytes in the file, all of them in a range of it."""
        first = bisect_left(self.contents, (start, 0, 0))
        last = bisect_left(self.contents, (end, 0, 0))
        return sorted(index for _, stop, index in self.contents[first:last] if stop <= end)


def round_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` (0 counts as 1) that is not below `value`."""
    alignment = max(alignment, 1)
    return -(-value // alignment) * alignment


def parse_layout(data: FileData) -> Layout:
    """Parse a linked ELF64 file and refuse those that cannot be rewritten without risk.

    Raises `EmbedError` with the reason, or `ElfError` when the headers themselves cannot be parsed.
    """
    header = parse_file_header(data)
    _refuse_kind(header)
    sections = tuple(parse_section_headers(data, header))
    segments = tuple(parse_program_headers(data, header))
    names_index = section_names_index(header, sections)
    if len(sections) >= SHN_LORESERVE - 1:
        raise EmbedError("the section table has no room for another index")
    names = _section_names(data, sections, names_index)
    _refuse_segments(data, segments)
    loads = tuple(segment for segment in segments if segment.type == PT_LOAD)
    contents = sorted(
        (section.file_offset, section.file_offset + section.size, index)
        for index, section in enumerate(sections)
        if section.type not in (SHT_NULL, SHT_NOBITS) and section.size > 0
    )
    end = _loaded_end(sections, segments)
    layout = Layout(data, header, sections, names, segments, names_index, end, loads, tuple(contents))
    _refuse_section_table(layout)
    _refuse_overlap(layout)
    _refuse_appended_data(layout)
    return layout


def _refuse_kind(header: FileHeader) -> None:
    if header.type == ET_CORE:
        raise EmbedError("a core dump has no place for a section")
    if header.type == ET_REL:
        raise EmbedError("a relocatable object needs relocations, not a segment")
    if header.type not in (ET_EXEC, ET_DYN):
        raise EmbedError(f"ELF type {header.type} is neither an executable nor a shared library")
    if header.program_header_count == PN_XNUM:
        raise EmbedError("more program headers than e_phnum can count")


def _section_names(data: FileData, sections: tuple[SectionHeader, ...], names_index: int) -> tuple[str, ...]:
    if not sections:
        return ()
    table = sections[names_index]
    if names_index == 0 or table.type != SHT_STRTAB or table.file_offset + table.size > len(data):
        raise EmbedError("the section name table does not fit the file")
    strings = bytes(data[table.file_offset : table.file_offset + table.size])
    last_end = strings.rfind(b"\0")
    if any(section.name_offset > last_end for section in sections):
        raise EmbedError("a section name leaves the section name table")
    known = StringTable(strings, "section names")
    return tuple(known.at(section.name_offset) for section in sections)


def _refuse_segments(data: FileData, segments: tuple[ProgramHeader, ...]) -> None:
    loads = [segment for segment in segments if segment.type == PT_LOAD]
    if len(segments) > _MAX_SEGMENT_COUNT:
        raise EmbedError(f"{len(segments)} program headers are more than Linux maps")
    if not loads:
        raise EmbedError("the file has no PT_LOAD segment: nothing of it is ever mapped")
    for segment in segments:
        if segment.file_size and segment.file_offset + segment.file_size > len(data):
            raise EmbedError(f"the segment at file offset 0x{segment.file_offset:x} leaves the file")
        if segment.type != PT_LOAD and segment.alignment > _MAX_ALIGNMENT:
            raise EmbedError(f"a segment is aligned to {segment.alignment} bytes: keeping that would take as many")
    for segment in loads:
        if segment.memory_size < segment.file_size:
            raise EmbedError(f"the segment at 0x{segment.vaddr:x} is smaller in memory than in the file")
        if segment.alignment > _MAX_LOAD_ALIGNMENT or segment.alignment.bit_count() > 1:
            raise EmbedError(f"the segment at 0x{segment.vaddr:x} is aligned to {segment.alignment} bytes")
        if segment.alignment > 1 and (segment.vaddr - segment.file_offset) % segment.alignment:
            raise EmbedError(f"the segment at 0x{segment.vaddr:x} is not congruent to its file offset")
        if segment.paddr not in (0, segment.vaddr):
            raise EmbedError("the segments have load addresses of their own: a kernel or firmware image")
    for before, after in pairwise(loads):
        if after.vaddr < before.vaddr:
            raise EmbedError("the PT_LOAD segments are not in address order")
        if after.vaddr < before.end_vaddr:
            raise EmbedError(f"the segments at 0x{before.vaddr:x} and 0x{after.vaddr:x} overlap")


def _loaded_end(sections: tuple[SectionHeader, ...], segments: tuple[ProgramHeader, ...]) -> int:
    ends = [segment.file_offset + segment.file_size for segment in segments if segment.file_size]
    ends += [
        section.file_offset + section.size
        for section in sections
        if section.flags & SHF_ALLOC and section.type not in (SHT_NULL, SHT_NOBITS) and section.size
    ]
    return max(ends, default=FILE_HEADER_SIZE)


def _refuse_section_table(layout: Layout) -> None:
    """Hold the section table against the segments and against itself."""
    ranges = [
        (0, FILE_HEADER_SIZE, _ELF_HEADER),
        (layout.header.program_headers_offset, layout.table_end, _PROGRAM_HEADERS),
    ]
    if layout.sections:
        start = layout.header.section_headers_offset
        ranges.append((start, start + SECTION_HEADER_SIZE * len(layout.sections), _SECTION_HEADERS))
    load_starts = [load.vaddr for load in layout.loads]
    for index, section in enumerate(layout.sections):
        name = shown_name(layout.names[index]) or f"number {index}"
        if section.flags & SHF_EXECINSTR and section.type == SHT_NOBITS:
            raise EmbedError(f"section {name} has no bytes here: this is a separate debug file")
        if section.file_offset >= _MAX_FILE_OFFSET:
            # It may have no bytes there, yet the offset is to be moved with those of others.
            raise EmbedError(f"section {name} is at file offset 0x{section.file_offset:x}, where no file has bytes")
        if not layout.has_content(index):
            continue
        if section.alignment > _MAX_ALIGNMENT:
            raise EmbedError(f"section {name} is aligned to {section.alignment} bytes: keeping that would take as many")
        end = section.file_offset + section.size
        if end > len(layout.data):
            raise EmbedError(f"section {name} leaves the file: the section table does not fit the content")
        if section.flags & SHF_ALLOC and name != SFRAME_NAME and not _is_mapped(layout, load_starts, section):
            raise EmbedError(f"section {name} lies in no segment: the section table does not fit the content")
        ranges.append((section.file_offset, end, index))
    ranges.sort()
    for before, after in pairwise(ranges):
        if after[0] < before[1]:
            first, second = (_TABLES.get(index) or f"section {layout.names[index]}" for index in (before[2], after[2]))
            raise EmbedError(f"{first} and {second} overlap in the file")


def _is_mapped(layout: Layout, starts: list[int], section: SectionHeader) -> bool:
    if section.flags & SHF_TLS:
        return True
    number = bisect_right(starts, section.vaddr) - 1
    if number < 0:
        return False
    load = layout.loads[number]
    return (
        section.vaddr + section.size <= load.vaddr + load.file_size
        and section.vaddr - load.vaddr == section.file_offset - load.file_offset
    )


def _refuse_overlap(layout: Layout) -> None:
    """Refuse segments that hold the same sections or notes many times over: each of them is read for each segment."""
    starts = [start for start, _, _ in layout.contents]
    left = _MAX_OVERLAP * len(layout.sections) + _OVERLAP_ALLOWANCE
    bytes_left = _MAX_OVERLAP * len(layout.data)
    for segment in layout.segments:
        end = segment.file_offset + segment.file_size
        left -= bisect_left(starts, end) - bisect_left(starts, segment.file_offset)
        bytes_left -= segment.file_size if segment.type in _READ_TYPES else 0
        if left < 0 or bytes_left < 0:
            raise EmbedError("the segments overlap one another over and over")


def _refuse_appended_data(layout: Layout) -> None:
    described = described_end(layout)
    appended = Joined([part_of(layout.data, described, len(layout.data))])
    if any(bytes(block).strip(b"\0") for _, block in appended.data_blocks()):
        size = len(layout.data) - described
        raise EmbedError(
            f"{size} bytes follow what the headers describe (an appended archive, payload or signature), "
            "and whoever reads them may look for them at a fixed place"
        )


def described_end(layout: Layout) -> int:
    """Return the file offset behind everything that the headers describe."""
    end = max(layout.loaded_end, layout.table_end)
    for index, section in enumerate(layout.sections):
        if layout.has_content(index):
            end = max(end, section.file_offset + section.size)
    if layout.sections:
        table = layout.header.section_headers_offset
        end = max(end, table + SECTION_HEADER_SIZE * len(layout.sections))
    return end


def parse_or_refuse(data: FileData) -> Layout:
    """Return `parse_layout(data)`, with damaged headers reported as `EmbedError` too."""
    try:
        return parse_layout(data)
    except ElfError as error:
        raise EmbedError(str(error)) from error
