# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back with code that did not take part in writing it, and compare it with the original.

Of the plan only the section's place is used. What is mapped at each address, what loaders and tools find, and the
section table have to be equal in both files, or differ in ways that `mapped` and `sections` allow.
"""

from __future__ import annotations

import struct
from itertools import count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import first_difference, is_zero
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE
from cfi2sframe.elf.ranges import Span, holder_of, without
from cfi2sframe.errors import ChangedError, ElfError
from cfi2sframe.rewrite.reread.mapped import check_memory
from cfi2sframe.rewrite.reread.sections import check_sections
from cfi2sframe.rewrite.reread.view import FileView, expect, failure, view_of

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer, ProgramHeader

#: The SFrame header, its magic number and its versions, which are enough to recognise a section.
_SFRAME_HEADER = "HBBBbbBIIIII"
_SFRAME_MAGIC = 0xDEE2
_SFRAME_VERSIONS = (1, 2, 3)


class Expected(NamedTuple):
    """The address of `.sframe`, its size in bytes, and the file offset of the program headers if they moved."""

    section_vaddr: int
    section_size: int
    table_file_offset: int | None = None


def check_rewritten(original: FileData, rewritten: FileData, place: Expected, section: Buffer | None) -> None:
    """Raise `EmbedError` unless `rewritten` is `original`, which has no SFrame section, with one added at `place`.

    The added section has to hold the bytes `section`, unless that is None. Raises `InputError` when one of the files
    cannot be read.
    """
    before, after = _views(original, rewritten)
    table = before.header.program_headers_offset if place.table_file_offset is None else place.table_file_offset
    expect(after.header.program_headers_offset == table, "the program headers are elsewhere")
    expect(not before.sframe_indices() and not _entries(before), "there was a section already")
    _check_section(after, place, section)
    _check_pair(before, after, is_removal=False)
    _check_headers(after)


def check_replaced(original: FileData, rewritten: FileData, place: Expected, section: Buffer | None) -> None:
    """Raise `EmbedError` unless the files differ only in the bytes, the size and the type of the SFrame section.

    PT_PHDR may have lost PF_X. The section must not have grown, and the bytes that it no longer needs must be zeros.
    It has to hold the bytes `section`, unless that is None. Raises `InputError` when one of the files cannot be read.
    """
    before, after = _views(original, rewritten)
    old = _loaded_section(before)
    new = _check_section(after, place, section)
    expect(old.start == new.start and new.end <= old.end, "the section is not where the old one was")
    changed = [old]
    for view in (before, after):
        start = view.table.start
        changed += [
            _item(start, PROGRAM_HEADER_SIZE, i) for i, s in enumerate(view.segments) if s.type == c.PT_GNU_SFRAME
        ]
        start = view.section_table.start
        changed += [_item(start, SECTION_HEADER_SIZE, index) for index in view.sframe_indices()]
    changed += _cleared_rights(before, after)
    entry, other = _entries(before)[0], _entries(after)[0]
    expect(entry._replace(file_size=0, memory_size=0) == other._replace(file_size=0, memory_size=0), "another segment")
    first, second = (view.sections[view.sframe_indices()[0]] for view in (before, after))
    expect(first._replace(type=0, size=0) == second._replace(type=0, size=0), "the section header changed")
    expect(is_zero(rewritten, Span(new.end, old.end)), "something is left of the old section")
    expect(len(original) == len(rewritten), "the file has another size")
    for unchanged in without([Span(0, len(original))], changed):
        expect(first_difference(original, rewritten, unchanged) is None, "something else changed")


def _cleared_rights(before: FileView, after: FileView) -> list[Span]:
    """Return where the p_flags of each PT_PHDR are that has lost PF_X and nothing else."""
    return [
        Span(start + 4, start + 8)
        for start, old, new in zip(count(before.table.start, PROGRAM_HEADER_SIZE), before.segments, after.segments)
        if old.type == c.PT_PHDR and old.flags & c.PF_X and new == old._replace(flags=old.flags & ~c.PF_X)
    ]


def _item(start: int, size: int, index: int) -> Span:
    return Span(start + size * index, start + size * (index + 1))


def check_removed(original: FileData, rewritten: FileData) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without its SFrame section, and nothing else.

    Raises `InputError` when one of the files cannot be read.
    """
    before, after = _views(original, rewritten)
    expect(not after.sframe_indices() and not _entries(after), "the section is still there")
    _check_pair(after, before, is_removal=True)
    _check_headers(after)


def _views(original: FileData, rewritten: FileData) -> tuple[FileView, FileView]:
    try:
        return view_of(original), view_of(rewritten)
    except ChangedError:
        raise
    except ElfError as error:
        raise failure(f"it does not parse: {error}") from error


def _check_pair(bare: FileView, full: FileView, *, is_removal: bool) -> None:
    indices = full.sframe_indices()
    place = _loaded_section(full)
    section = indices[0] if indices else None
    moved = check_sections(bare, full, section, is_removal=is_removal)
    check_memory(bare, full, place, moved)


def _entries(view: FileView) -> list[ProgramHeader]:
    return [segment for segment in view.segments if segment.type == c.PT_GNU_SFRAME]


def _loaded_section(view: FileView) -> Span:
    """Return the file offsets of the SFrame section; an empty span when it is not loaded.

    Raises `EmbedError` when PT_GNU_SFRAME and the section header disagree, or when there is only one of them and it
    leads to bytes that are no SFrame section.
    """
    entries, indices = _entries(view), view.sframe_indices()
    expect(len(entries) <= 1 and len(indices) <= 1, "there are several SFrame sections")
    if entries and indices:
        entry, section = entries[0], view.sections[indices[0]]
        same = (entry.vaddr, entry.file_offset) == (section.vaddr, section.file_offset)
        # GNU ld 2.44 to 2.47 counts discarded parts of the section in the size of PT_GNU_SFRAME.
        same &= entry.file_size == section.size or (
            entry.file_size > section.size and _is_sframe(view, section.file_span)
        )
        expect(same, "PT_GNU_SFRAME and the section header lead to different places")
        return section.file_span
    expect(bool(entries or indices), "there is no SFrame section")
    place = (entries[0] if entries else view.sections[indices[0]]).file_span
    if indices and not view.sections[indices[0]].flags & c.SHF_ALLOC:
        return Span(place.start, place.start)
    expect(_is_sframe(view, place), "what the only header of the SFrame section leads to is none")
    return place


def _is_sframe(view: FileView, place: Span) -> bool:
    """Whether a span starts with an SFrame header, whose sizes add up to the span's."""
    size = struct.calcsize(view.order + _SFRAME_HEADER)
    if place.end - place.start < size:
        return False
    fields = struct.unpack(view.order + _SFRAME_HEADER, view.bytes_of(Span(place.start, place.start + size)))
    magic, version, *_, auxiliary_size, _fde_count, _fre_count, rows_size, _table_offset, rows_offset = fields
    end = size + auxiliary_size + rows_offset + rows_size
    return magic == _SFRAME_MAGIC and version in _SFRAME_VERSIONS and end == place.end - place.start


def _check_headers(view: FileView) -> None:
    """Check that kernels, loaders and tools can use the headers."""
    _check_loads(view)
    _check_table(view)
    spans = [view.section_table] if view.sections else []
    spans += [section.file_span for section in view.sections if section.is_stored]
    spans.sort()
    for before, after in pairwise(spans):
        expect(before.end <= after.start, "sections overlap in the file")
    expect(not spans or spans[-1].end <= len(view.data), "a section leaves the file")


def _check_loads(view: FileView) -> None:
    loads = view.loads()
    for load in loads:
        expect(load.file_span.end <= len(view.data), "a PT_LOAD leaves the file")
        expect(load.file_size <= load.memory_size, "a PT_LOAD is smaller in memory than in the file")
        congruent = (load.vaddr - load.file_offset) % max(load.alignment, 1) == 0
        expect(congruent, "a PT_LOAD is not congruent to its file offset")
    for before, after in pairwise(loads):
        expect(before.end_vaddr <= after.vaddr, "PT_LOAD segments overlap or are out of order")


def _check_table(view: FileView) -> None:
    """Check that the program headers are loaded, that PT_PHDR leads to them, and that old kernels find them too.

    Kernels before 5.18 compute AT_PHDR from the first segment, wherever the table is.
    """
    loads = view.loads()
    holder = next((s for s in loads if holder_of([s.file_span], view.table)), None)
    for entry in (segment for segment in view.segments if segment.type == c.PT_PHDR):
        expect(entry.file_span == view.table, "PT_PHDR leads elsewhere")
        same = holder is not None and holder.vaddr - holder.file_offset == entry.vaddr - entry.file_offset
        expect(same, "PT_PHDR gives another address than its segment")
    is_program = view.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in view.segments)
    if holder is not None and is_program:
        first = loads[0].vaddr - loads[0].file_offset
        expect(holder.vaddr - holder.file_offset == first, "old kernels would look for the headers elsewhere")


def _check_section(view: FileView, place: Expected, section: Buffer | None) -> Span:
    """Check the place and the bytes of the SFrame section, and return its file offsets."""
    entries = _entries(view)
    expect(len(entries) == 1, f"{len(entries)} PT_GNU_SFRAME segments instead of one")
    entry = entries[0]
    found = (entry.vaddr, entry.file_size, entry.memory_size)
    expect(found == (place.section_vaddr, place.section_size, place.section_size), "PT_GNU_SFRAME is elsewhere")
    holders = [load for load in view.loads() if load.holds(entry.vaddr, entry.file_offset, entry.memory_size)]
    expect(len(holders) == 1, "PT_GNU_SFRAME is in no PT_LOAD")
    expect(holders[0].flags & (c.PF_R | c.PF_W) == c.PF_R, "PT_GNU_SFRAME is not read-only")
    if view.sections:
        expect(len(view.sframe_indices()) == 1, "there is no section called .sframe, or several")
    span = _loaded_section(view) if view.sections else entry.file_span
    if section is not None:
        same = span.end - span.start == len(section) and view.bytes_of(span) == bytes(section)
        expect(same, "the bytes of .sframe differ")
    return span
