# SPDX-License-Identifier: Apache-2.0
"""Compare a static program with the same program that has a page in front of its first segment.

At every address that the program had are the bytes that it had, with the same rights. In addition there is the page,
with the file header, the program headers and notes, and nothing else. The rest of the file is that much further on.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import first_difference, is_zero
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, SYMBOL_SIZE
from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.rewrite.reread.view import FileView, Loads, expect, view_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ProgramHeader, SectionHeader

#: Linux refuses to map lower addresses for most users.
_LOWEST_VADDR = 0x10000
_SMALLEST_PAGE = 0x1000
#: Where the file header has e_shoff, e_shnum and e_shstrndx.
_SECTION_FIELDS = (Span(40, 48), Span(60, 64))


class _Note(NamedTuple):
    """A section of notes that is in the page: its number, and its place there in the file and in memory."""

    number: int
    place: Span
    vaddr: int


def check_front_page(original: FileData, grown: FileData) -> None:
    """Raise `EmbedError` unless `grown` is the static program `original` with a page in front of its first segment.

    Raises `InputError` when one of the files cannot be read, `ElfError` when headers are damaged.
    """
    before, after = view_of(original), view_of(grown)
    size = len(grown) - len(original)
    expect(size > 0 and size % _SMALLEST_PAGE == 0, "what is in front of the first segment is no page")
    _check_kind(before, after, size)
    _check_segments(before, after, size)
    notes = _check_sections(before, after, size)
    spans = [Span(0, FILE_HEADER_SIZE), after.table, *(note.place for note in notes)]
    for one, other in pairwise(sorted(spans)):
        expect(one.end <= other.start, "headers and notes overlap in the new page")
    expect(max(span.end for span in spans) <= size, "the new page is too small for its headers")
    for gap in without([Span(0, size)], spans):
        expect(is_zero(grown, gap), "the new page has more than headers and notes")
    # What the old file header, now out of use, tells of section headers may be from before these moved.
    changed = [before.section_table, *_SECTION_FIELDS]
    for index, section in enumerate(before.sections):
        if section.type in (c.SHT_SYMTAB, c.SHT_DYNSYM) and section.is_stored and notes:
            _check_symbols(before, after, index, {note.number: note for note in notes})
            changed.append(section.file_span)
    for place in without([Span(0, len(original))], changed):
        same = first_difference(original, grown, place, place.start + size) is None
        expect(same, f"bytes behind the new page changed, from file offset 0x{place.start:x} on")


def _check_kind(before: FileView, after: FileView, size: int) -> None:
    header = before.header
    expect(header.type == c.ET_EXEC, "a page in front of a file whose addresses are not fixed")
    needs_table = any(s.type in (c.PT_INTERP, c.PT_DYNAMIC, c.PT_PHDR) for s in before.segments)
    expect(not needs_table, "a page in front of a program that is not static")
    same = header._replace(section_headers_offset=header.section_headers_offset + size) == after.header
    expect(same and header.program_headers_offset == FILE_HEADER_SIZE, "the file header changed")


def _check_segments(before: FileView, after: FileView, size: int) -> None:
    """Check that segments have their addresses and bytes; the first one is larger, and notes may be in the page."""
    expect(len(before.segments) == len(after.segments), "there are more or fewer program headers")
    loads = before.loads()
    expect(bool(loads), "there is no segment")
    first = min(loads, key=lambda load: load.vaddr)
    expect(first is loads[0] and first.file_offset == 0, "the first segment does not start with the file header")
    start = first.vaddr - size
    expect(start >= _LOWEST_VADDR, "the new page has an address that Linux does not map")
    found = Loads(after)
    for old, new in zip(before.segments, after.segments, strict=True):
        if old is first:
            grown = (old.file_size + size, old.memory_size + size)
            expect((new.file_offset, new.vaddr, new.paddr) == (0, start, old.paddr and start), "the page is elsewhere")
            expect((new.file_size, new.memory_size) == grown, "the first segment has another size")
            same = (old.type, old.flags, old.alignment) == (new.type, new.flags, new.alignment)
            expect(same and start % max(old.alignment, 1) == 0, "the first segment changed")
        elif old.type == c.PT_NOTE and new.file_offset < size:
            _check_note_segment(before, after, (old, new), found)
        else:
            is_empty = not (old.file_size or old.memory_size or old.file_offset)
            moved = old if is_empty else old._replace(file_offset=old.file_offset + size)
            expect(moved == new, f"a program header of type {old.type:#x} changed")


def _check_note_segment(
    before: FileView, after: FileView, pair: tuple[ProgramHeader, ProgramHeader], loads: Loads
) -> None:
    old, new = pair
    place = new._replace(file_offset=old.file_offset, vaddr=old.vaddr, paddr=old.paddr)
    expect(place == old and new.paddr in (0, new.vaddr), "a PT_NOTE changed")
    expect(loads.file_offset_of(new.vaddr, new.file_size) == new.file_offset, "a PT_NOTE has moved, and is not mapped")
    expect(new.vaddr % max(new.alignment, 1) == 0, "a PT_NOTE is misaligned")
    expect(before.bytes_of(old.file_span) == after.bytes_of(new.file_span), "the contents of a PT_NOTE changed")


def _check_sections(before: FileView, after: FileView, size: int) -> list[_Note]:
    """Check that sections are further on by the page, or notes in it; return these."""
    expect(len(before.sections) == len(after.sections) and before.names == after.names, "there are other sections")
    expect(before.headers.names_index == after.headers.names_index, "the section names are elsewhere")
    loads = Loads(after)
    segments = [segment.file_span for segment in after.segments if segment.type == c.PT_NOTE]
    notes = []
    for index, (old, new) in enumerate(zip(before.sections, after.sections, strict=True)):
        if old.type == c.SHT_NOTE and new.file_offset < size:
            _check_note(before, after, (old, new), loads)
            held = any(span.start <= new.file_offset and new.file_span.end <= span.end for span in segments)
            expect(held, "notes have moved, and no PT_NOTE leads to them")
            notes.append(_Note(index, new.file_span, new.vaddr))
        else:
            moved = old._replace(file_offset=old.file_offset + size) if index else old
            expect(moved == new, f"section number {index} changed")
    return notes


def _check_note(before: FileView, after: FileView, pair: tuple[SectionHeader, SectionHeader], loads: Loads) -> None:
    old, new = pair
    same = new._replace(vaddr=old.vaddr, file_offset=old.file_offset) == old
    expect(same and bool(old.flags & c.SHF_ALLOC) and not old.flags & c.SHF_WRITE, "a section of notes changed")
    expect(new.vaddr % max(new.alignment, 1) == 0, "a section of notes is misaligned")
    expect(loads.file_offset_of(new.vaddr, new.size) == new.file_offset, "notes have moved, and are not mapped")
    expect(before.bytes_of(old.file_span) == after.bytes_of(new.file_span), "the contents of notes changed")


def _check_symbols(before: FileView, after: FileView, index: int, notes: dict[int, _Note]) -> None:
    """Check that only symbols of notes that moved have other values."""
    old, new = before.sections[index], after.sections[index]
    first, second = before.bytes_of(old.file_span), after.bytes_of(new.file_span)
    expect(len(first) == len(second), "a symbol table leaves the file")
    if first == second:
        return
    for at in range(0, len(first), SYMBOL_SIZE):
        one, other = first[at : at + SYMBOL_SIZE], second[at : at + SYMBOL_SIZE]
        if one != other:
            expect(len(one) == SYMBOL_SIZE, "the end of a symbol table changed")
            (section_index, value), moved = (struct.unpack(before.order + "6xHQ8x", one), other)
            note = notes.get(section_index)
            expected = value + note.vaddr - before.sections[section_index].vaddr if note else value
            same = moved == one[:8] + struct.pack(before.order + "Q", expected & (1 << 64) - 1) + one[16:]
            expect(same, f"symbol {at // SYMBOL_SIZE} changed")
