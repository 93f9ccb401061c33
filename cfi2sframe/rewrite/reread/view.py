# SPDX-License-Identifier: Apache-2.0
"""A linked file as loaders and tools see it: its headers, read again, and ranges of its bytes.

Shares nothing with the code that plans and writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import PT_LOAD, SHT_NOBITS, SHT_NULL, SHT_STRTAB
from cfi2sframe.elf.contents import Joined, part_of, stored_steps
from cfi2sframe.elf.records import (
    PROGRAM_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    FileHeader,
    ProgramHeader,
    SectionHeader,
    is_sframe_section,
    parse_file_header,
    parse_program_headers,
    parse_section_headers,
    section_names_index,
)
from cfi2sframe.elf.strings import StringTable
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.elf.records import ByteOrder, FileData

#: A range of file offsets: the first byte, and the first one past the end.
Range = tuple[int, int]

_STEP = 1 << 18
_SMALL_STEP = 1 << 12


class View(NamedTuple):
    """A file, its headers, and the names of its sections."""

    data: FileData
    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    sections: tuple[SectionHeader, ...]
    names: tuple[str, ...]
    names_index: int

    @property
    def order(self) -> ByteOrder:
        """`<` or `>`, as `struct` spells it."""
        return self.header.byte_order

    @property
    def table(self) -> Range:
        """Where the program headers are."""
        start = self.header.program_headers_offset
        return start, start + PROGRAM_HEADER_SIZE * len(self.segments)

    @property
    def section_table(self) -> Range:
        """Where the section headers are."""
        start = self.header.section_headers_offset
        return start, start + SECTION_HEADER_SIZE * len(self.sections)

    def loads(self) -> list[ProgramHeader]:
        """Return the PT_LOAD entries, in the order of the table."""
        return [segment for segment in self.segments if segment.type == PT_LOAD]

    def sframe_indices(self) -> list[int]:
        """Return the indices of all SFrame sections."""
        return [i for i, s in enumerate(self.sections) if is_sframe_section(s.type, self.names[i])]

    def is_in_file(self, index: int) -> bool:
        """Say whether a section has bytes in the file."""
        section = self.sections[index]
        return section.type not in (SHT_NULL, SHT_NOBITS) and section.size > 0

    def bytes_of(self, place: Range) -> bytes:
        """Return the bytes of a range; fewer where the file ends."""
        return bytes(self.data[place[0] : place[1]])


def expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise failure(message)


def failure(message: str) -> EmbedError:
    """Return the error that says how the check has failed."""
    return EmbedError(f"the rewritten file fails its re-read: {message}")


class Loads:
    """The PT_LOAD entries of a file, to be searched by address; of those that overlap, the highest is found."""

    def __init__(self, view: View) -> None:
        self._loads = tuple(sorted(view.loads(), key=lambda load: load.vaddr))
        self._starts = [load.vaddr for load in self._loads]

    def file_offset_of(self, vaddr: int, size: int) -> int | None:
        """Return where in the file the bytes at an address are; None when no segment holds them all."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0 or size < 0 or vaddr + size > self._starts[index] + self._loads[index].file_size:
            return None
        load = self._loads[index]
        return load.file_offset + vaddr - load.vaddr


def view_of(data: FileData) -> View:
    """Read the headers of a file. Raises `EmbedError` or `ElfError` when they are damaged."""
    header = parse_file_header(data)
    segments = tuple(parse_program_headers(data, header))
    sections = parse_section_headers(data, header)
    index = section_names_index(header, sections)
    names: tuple[str, ...] = ()
    if sections:
        table = sections[index]
        end = table.file_offset + table.size
        expect(table.type == SHT_STRTAB and end <= len(data), "the section names are not where the header says")
        strings = StringTable(bytes(data[table.file_offset : end]), "section names")
        names = tuple(strings.at(section.name_offset) for section in sections)
    return View(data, header, segments, tuple(sections), names, index)


def file_range(entry: SectionHeader | ProgramHeader) -> Range:
    """Return the bytes of the file that a segment, or a section that has some, consists of."""
    size = entry.file_size if isinstance(entry, ProgramHeader) else entry.size
    return entry.file_offset, entry.file_offset + size


def united(ranges: Iterable[Range]) -> list[Range]:
    """Return the bytes that are in any of the ranges, as ascending ranges that do not touch."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the bytes of some ranges that are in none of the others, as ascending ranges."""
    cuts = united(taken)
    result: list[Range] = []
    at = 0
    for start, end in united(ranges):
        position = start
        while at < len(cuts) and cuts[at][1] <= start:
            at += 1
        cut = at
        while cut < len(cuts) and cuts[cut][0] < end:
            if position < cuts[cut][0]:
                result.append((position, cuts[cut][0]))
            position = max(position, cuts[cut][1])
            cut += 1
        if position < end:
            result.append((position, end))
    return result


def common(first: Iterable[Range], second: Iterable[Range]) -> list[Range]:
    """Return the bytes that are in both, as ascending ranges."""
    ranges = united(first)
    return without(ranges, without(ranges, second))


def first_difference(first: FileData, second: FileData, place: Range, second_start: int | None = None) -> int | None:
    """Return the file offset of the first step of two files that differs; None when a range is the same in both.

    The range is at `second_start` of the second file, or at the same place. Bytes past a file's end differ.
    """
    start, end = place
    distance = 0 if second_start is None else second_start - start
    if end > len(first) or end + distance > len(second):
        return start
    one, other = part_of(first, start, end), part_of(second, start + distance, end + distance)
    # bytes compare by memcmp, memoryviews element by element; small slices keep the copies in the cache.
    for at, after in stored_steps(one, other):
        if bytes(one[at:after]) != bytes(other[at:after]):
            return start + at
    return None


def differences(first: FileData, second: FileData, place: Range) -> Iterator[Range]:
    """Yield the runs of bytes of a range that differ between two files."""
    position, end = place
    while (at := first_difference(first, second, (position, end))) is not None:
        position = min(at + _STEP, end)
        for start in range(at, position, _SMALL_STEP):
            stop = min(start + _SMALL_STEP, position)
            one, other = bytes(first[start:stop]), bytes(second[start:stop])
            if one != other:
                pairs = zip_longest(one, other)
                for differs, run in groupby(enumerate(pairs, start), key=lambda item: item[1][0] != item[1][1]):
                    if differs:
                        places = [number for number, _ in run]
                        yield places[0], places[-1] + 1


def holder_of(ranges: Sequence[Range], place: Range) -> Range | None:
    """Return which of some ascending ranges that do not touch holds another range."""
    index = bisect_right(ranges, (place[0], 1 << 64)) - 1
    return ranges[index] if index >= 0 and place[1] <= ranges[index][1] else None


def touches(ranges: Sequence[Range], place: Range) -> bool:
    """Say whether some ascending ranges that do not touch have bytes in common with another range."""
    index = bisect_left(ranges, (place[1], -1)) - 1
    return index >= 0 and place[0] < min(ranges[index][1], place[1])


def is_zero(data: FileData, place: Range) -> bool:
    """Say whether a range holds nothing but zeros."""
    return not any(bytes(block).strip(b"\0") for _, block in Joined([part_of(data, *place)]).data_blocks())
