# SPDX-License-Identifier: Apache-2.0
"""A linked file as rewriting sees it, and the files that are refused.

The headers of a file that passes describe all of its bytes. What follows the loaded part may therefore move, by
multiples of its alignment, as long as the headers are updated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from copy import copy
from itertools import count, pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, is_zero, part_of
from cfi2sframe.elf.headers import (
    DYNAMIC_ENTRY_SIZE,
    FILE_HEADER_SIZE,
    PROGRAM_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SFRAME_NAME,
    ElfSection,
    ProgramHeader,
)
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.segments import SegmentMap
from cfi2sframe.errors import ElfError, EmbedError, PayloadError
from cfi2sframe.placing.undo import record_span
from cfi2sframe.range_map import Span, holder_of, touches, united
from cfi2sframe.text import counted, shown_name

#: Linux does not load a file with more than 64 KiB of program headers.
_MAX_SEGMENT_COUNT = (1 << 16) // PROGRAM_HEADER_SIZE
#: Bytes of the largest alignment of a section: when it moves, it may need as much padding (2 MiB is a large page).
_MAX_ALIGNMENT = 1 << 21
#: Bytes of the largest page of any processor. A new segment gets the largest alignment of all segments.
_MAX_LOAD_ALIGNMENT = 1 << 30
#: From here on, AMD64 and AArch64 have the kernel's addresses, and linkers for s390x place nothing.
_KERNEL_VADDR = 1 << 63
_MAX_FILE_OFFSET = 1 << 63


class DynamicEntry(NamedTuple):
    """An Elf64_Dyn, and the file offset of its value."""

    tag: int
    value: int
    value_file_offset: int


class LinkedFile(ElfImage):
    """The image of a linked file that has passed the checks. The record of a conversion is no part of its bytes.

    `stored` are the sections that have bytes in the file, in file order, without overlaps. `loaded_end` is the file
    offset of the first byte after all segments and allocated sections.
    """

    def __init__(self, data: FileData) -> None:
        super().__init__(data, "")
        stored = [section for section in self.sections if section.is_stored]
        self.stored = tuple(sorted(stored, key=lambda section: (section.file_span, section.index)))
        ends = [segment.file_span.end for segment in self.segments if segment.file_size]
        ends += [section.file_span.end for section in stored if section.flags & c.SHF_ALLOC]
        self.loaded_end = max(ends, default=FILE_HEADER_SIZE)

    @property
    def table_end(self) -> int:
        """File offset of the first byte after the program header table."""
        return self.header.program_headers_offset + PROGRAM_HEADER_SIZE * len(self.segments)

    @property
    def section_table(self) -> Span:
        """The file offsets of the section headers; empty without any."""
        start = self.header.section_headers_offset
        return Span(start, start + SECTION_HEADER_SIZE * len(self.sections))

    @property
    def names_section(self) -> ElfSection:
        """The section that holds the section names, if there are sections."""
        return self.sections[self.headers.names_index]

    @property
    def symbol_tables(self) -> tuple[ElfSection, ...]:
        """All sections that hold symbols, also where a file has several of one kind."""
        return tuple(s for s in self.sections if s.type in (c.SHT_SYMTAB, c.SHT_DYNSYM) and s.is_stored)

    def symbol_fields(self, table: ElfSection) -> Iterator[tuple[int, ...]]:
        """Yield st_info, st_shndx and st_value of each symbol."""
        return self.records(table, "4xBxHQ8x")

    @property
    def dynamic(self) -> tuple[DynamicEntry, ...]:
        """The entries of `.dynamic` up to DT_NULL; none for a static executable."""
        for section in self.sections:
            if section.type == c.SHT_DYNAMIC and section.is_stored:
                pairs = takewhile(lambda pair: pair[0] != c.DT_NULL, self.records(section, "QQ"))
                values = count(section.file_offset + 8, DYNAMIC_ENTRY_SIZE)
                return tuple(DynamicEntry(tag, value, at) for (tag, value), at in zip(pairs, values, strict=False))
        return ()

    def with_load(self, old: ProgramHeader, new: ProgramHeader) -> "LinkedFile":
        """Return the file with another PT_LOAD in place of one."""
        changed = copy(self)
        changed.segments = tuple(new if segment is old else segment for segment in self.segments)
        changed.segment_map = SegmentMap(changed.segments)
        return changed

    def indices_within(self, span: Span) -> list[int]:
        """Return the indices, ascending, of the sections that have bytes, all of them within a span of the file."""
        first = bisect_left(self.stored, span.start, key=_start_of)
        last = bisect_left(self.stored, span.end, key=_start_of)
        return sorted(section.index for section in self.stored[first:last] if section.file_span.end <= span.end)

    def alignment_from(self, file_offset: int) -> int:
        """Return the unit by which the sections from `file_offset` on may move: their largest alignment, at least 8."""
        return max([8, *(section.alignment for section in self.stored if section.file_offset >= file_offset)])

    def next_described(self, file_offset: int) -> int:
        """Return the start of what headers describe next, from a file offset on; the file's end if that is nothing."""
        starts = [segment.file_offset for segment in self.segments if segment.file_size]
        starts += [section.file_offset for section in self.stored]
        starts += [self.section_table.start] if self.sections else []
        return min([*(start for start in starts if start >= file_offset), len(self.data)])

    def stored_at(self, file_offset: int) -> ElfSection | None:
        """Return the section that has the byte at a file offset."""
        number = bisect_right(self.stored, file_offset, key=_start_of) - 1
        section = self.stored[number] if number >= 0 else None
        return section if section is not None and file_offset < section.file_span.end else None


_start_of = attrgetter("file_offset")


def with_own_entry(segments: list[ProgramHeader]) -> tuple[ProgramHeader, ...]:
    """Return the program headers with PT_PHDR set to their size, and without its PF_X.

    Loaders never read its flags; but the SFrame code proposed for Linux takes it with PF_X for a segment with code.
    """
    size = PROGRAM_HEADER_SIZE * len(segments)
    own = {"file_size": size, "memory_size": size}
    return tuple(s._replace(flags=s.flags & ~c.PF_X, **own) if s.type == c.PT_PHDR else s for s in segments)


def round_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` (0 counts as 1) that is not below `value`."""
    alignment = max(alignment, 1)
    return -(-value // alignment) * alignment


def open_linked(data: FileData) -> LinkedFile:
    """Parse a linked ELF64 file that can be rewritten without risk.

    Raises `EmbedError` with the reason for any other file, also when its headers are damaged.
    """
    try:
        file = LinkedFile(data)
    except ElfError as error:
        raise EmbedError(str(error)) from error
    _refuse_names(file)
    _refuse_segments(file)
    _refuse_sections(file)
    file.data = _without_appended_data(file)
    return file


def _refuse_names(file: LinkedFile) -> None:
    if not file.sections:
        return
    if len(file.sections) >= c.SHN_LORESERVE - 1:
        raise EmbedError("the section table has no room for another index")
    table = file.names_section
    if table.index == 0 or table.type != c.SHT_STRTAB or table.file_span.end > len(file.data):
        raise EmbedError("the section name table extends past the end of the file, or is missing")
    last_end = file.section_bytes(table).rfind(b"\0")
    if any(section.name_offset > last_end for section in file.sections):
        raise EmbedError("a section name is outside the section name table")


def _refuse_segments(file: LinkedFile) -> None:
    if file.header.program_header_count == c.PN_XNUM:
        raise EmbedError("the file has more program headers than e_phnum can hold")
    if len(file.segments) > _MAX_SEGMENT_COUNT:
        raise EmbedError(f"{len(file.segments)} program headers are more than Linux loads")
    loads = [segment for segment in file.segments if segment.type == c.PT_LOAD]
    if not loads:
        raise EmbedError("the file has no PT_LOAD segment, so nothing of it is mapped")
    for segment in file.segments:
        if segment.file_size and segment.file_span.end > len(file.data):
            raise EmbedError(f"the segment at file offset 0x{segment.file_offset:x} extends past the end of the file")
        if segment.type != c.PT_LOAD and segment.alignment > _MAX_ALIGNMENT:
            raise EmbedError(f"a segment is aligned to {segment.alignment} bytes, which would need as much padding")
    for segment in loads:
        _refuse_load(segment)
    for before, after in pairwise(loads):
        if after.vaddr < before.vaddr:
            raise EmbedError("the PT_LOAD segments are not in address order")
        if after.vaddr < before.end_vaddr:
            raise EmbedError(f"the segments at 0x{before.vaddr:x} and 0x{after.vaddr:x} overlap")


def _refuse_load(segment: ProgramHeader) -> None:
    if segment.memory_size < segment.file_size:
        raise EmbedError(f"the segment at 0x{segment.vaddr:x} is smaller in memory than in the file")
    if segment.alignment > _MAX_LOAD_ALIGNMENT or segment.alignment.bit_count() > 1:
        raise EmbedError(f"the segment at 0x{segment.vaddr:x} is aligned to {segment.alignment} bytes")
    is_congruent = segment.vaddr_of(0) % max(segment.alignment, 1) == 0
    # objcopy leaves an empty one where it has removed all sections.
    if segment.memory_size and not is_congruent:
        raise EmbedError(f"the segment at 0x{segment.vaddr:x} is not congruent to its file offset")
    if segment.paddr not in (0, segment.vaddr):
        raise EmbedError("the physical addresses of segments differ from the virtual ones: a kernel or firmware image")
    if segment.vaddr >= _KERNEL_VADDR:
        raise EmbedError(
            f"the segment at 0x{segment.vaddr:x} is in the upper half of the address space: a kernel image"
        )


def _refuse_sections(file: LinkedFile) -> None:
    """Check the section table against the segments, and the contents of sections for overlaps."""
    occupied = [
        (Span(0, FILE_HEADER_SIZE), "the ELF header"),
        (Span(file.header.program_headers_offset, file.table_end), "the program headers"),
    ]
    if file.sections:
        occupied.append((file.section_table, "the section headers"))
    for section in file.sections:
        name = shown_name(section.name) or f"number {section.index}"
        if section.flags & c.SHF_EXECINSTR and section.type == c.SHT_NOBITS:
            raise EmbedError(f"section {name} has no bytes here: this is a separate debug file")
        if section.file_offset >= _MAX_FILE_OFFSET:
            # Checked even without bytes there: the offset may have to be increased.
            raise EmbedError(f"section {name} is at file offset 0x{section.file_offset:x}, which no file can have")
        if not section.is_stored:
            continue
        if section.alignment > _MAX_ALIGNMENT:
            raise EmbedError(
                f"section {name} is aligned to {section.alignment} bytes, which would need as much padding"
            )
        if section.file_span.end > len(file.data):
            raise EmbedError(
                f"section {name} extends past the end of the file: the section table does not fit the content"
            )
        if section.flags & c.SHF_ALLOC and name != SFRAME_NAME and not _is_mapped(file, section):
            raise EmbedError(f"section {name} is in no segment: the section table does not fit the content")
        occupied.append((section.file_span, f"section {name}"))
    occupied.sort(key=lambda item: item[0])
    for (before, first), (after, second) in pairwise(occupied):
        if after.start < before.end:
            raise EmbedError(f"{first} and {second} overlap in the file")


def _is_mapped(file: LinkedFile, section: ElfSection) -> bool:
    distance, span = section.vaddr - section.file_offset, Span(section.vaddr, section.vaddr + section.size)
    # patchelf 0.14 lets a section cross from a segment into the next one.
    held = united(load.stored_vaddrs for load in file.loads if load.vaddr - load.file_offset == distance)
    if holder_of(held, span) is not None or section.flags & c.SHF_TLS:
        return True
    # Sections that objcopy adds have no address and are not loaded. No reader looks for the notes that LIEF adds so.
    is_apart = not touches(united(load.file_span for load in file.loads), section.file_span)
    return not section.vaddr and (is_apart or section.type == c.SHT_NOTE)


def _without_appended_data(file: LinkedFile) -> FileData:
    """Return the bytes without a record for removal. Raises `PayloadError` if bytes follow that no header describes."""
    ends = [file.loaded_end, file.table_end, file.section_table.end]
    described = max([*ends, *(section.file_span.end for section in file.stored)])
    record = record_span(file.data, described)
    end = len(file.data) if record is None else max(record.start, described)
    rest = [Span(described, end), Span(max(record.end, described) if record else end, len(file.data))]
    size = sum(span.end - span.start for span in rest if not is_zero(file.data, span))
    if size:
        raise PayloadError(
            f"{counted(size, 'byte')} appended after the ELF data (an archive, a payload or a signature); "
            "adding or removing a section would move what may be expected at a fixed offset"
        )
    return part_of(file.data, 0, end)
