# SPDX-License-Identifier: Apache-2.0
"""A linked file as loaders and tools see it: its headers, parsed again.

What is shared with the code that plans and writes, and why that is safe:

- `elf.headers` unpacks the fields of headers. Everything that reads ELF uses it, and tests compare it with readelf and
  pyelftools, which would detect a wrong field. Nothing derived from headers is shared.
- `elf.contents`, `elf.ranges` and `elf.strings` read, compare and cut bytes, and know no headers.
- `loader_notes` tells for which notes a loader may refuse a program, `note_addresses` which hold an address relative
  to themselves: properties of bytes, not of the plan.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import PT_LOAD, SHT_STRTAB
from cfi2sframe.elf.headers import (
    PROGRAM_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    Headers,
    is_sframe_section,
    parse_headers,
)
from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.strings import StringTable
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder, FileHeader, ProgramHeader, SectionHeader


class FileView(NamedTuple):
    """A file, its headers, and the names of its sections."""

    data: FileData
    headers: Headers
    names: tuple[str, ...]

    @property
    def header(self) -> FileHeader:
        """The file header."""
        return self.headers.file

    @property
    def segments(self) -> tuple[ProgramHeader, ...]:
        """The program headers."""
        return self.headers.segments

    @property
    def sections(self) -> tuple[SectionHeader, ...]:
        """The section headers."""
        return self.headers.sections

    @property
    def order(self) -> ByteOrder:
        """`<` or `>`, as `struct` spells it."""
        return self.header.byte_order

    @property
    def table(self) -> Span:
        """Where the program headers are."""
        start = self.header.program_headers_offset
        return Span(start, start + PROGRAM_HEADER_SIZE * len(self.segments))

    @property
    def section_table(self) -> Span:
        """Where the section headers are."""
        start = self.header.section_headers_offset
        return Span(start, start + SECTION_HEADER_SIZE * len(self.sections))

    def loads(self) -> list[ProgramHeader]:
        """Return the PT_LOAD entries, in the order of the table."""
        return [segment for segment in self.segments if segment.type == PT_LOAD]

    def sframe_indices(self) -> list[int]:
        """Return the indices of all SFrame sections."""
        return [i for i, s in enumerate(self.sections) if is_sframe_section(s.type, self.names[i])]

    def bytes_of(self, span: Span) -> bytes:
        """Return the bytes of a span; fewer where the file ends."""
        return bytes(self.data[span.start : span.end])


def expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise failure(message)


def failure(message: str) -> EmbedError:
    """Return the error for a check that failed."""
    return EmbedError(f"the rewritten file fails its re-read: {message}")


class Loads:
    """The PT_LOAD entries of a file, to be searched by address; of several that overlap, the one that starts last."""

    def __init__(self, view: FileView) -> None:
        self._loads = tuple(sorted(view.loads(), key=lambda load: load.vaddr))
        self._starts = [load.vaddr for load in self._loads]

    def file_offset_of(self, vaddr: int, size: int) -> int | None:
        """Return the file offset of `size` bytes at a virtual address; None when no segment has them all."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0 or size < 0 or vaddr + size > self._starts[index] + self._loads[index].file_size:
            return None
        load = self._loads[index]
        return load.file_offset + vaddr - load.vaddr


def view_of(data: FileData) -> FileView:
    """Parse the headers of a file. Raises `EmbedError` or `ElfError` when they are damaged."""
    headers = parse_headers(data)
    names: tuple[str, ...] = ()
    if headers.sections:
        table = headers.sections[headers.names_index]
        is_there = table.type == SHT_STRTAB and table.file_span.end <= len(data)
        expect(is_there, "the section names are not where the header says")
        strings = StringTable(bytes(data[table.file_offset : table.file_span.end]))
        names = tuple(strings.at(section.name_offset) for section in headers.sections)
    return FileView(data, headers, names)
