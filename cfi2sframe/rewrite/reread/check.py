# SPDX-License-Identifier: Apache-2.0
"""Read a rewritten file back with code that had no part in writing it, and compare it with the original.

Nothing is derived from a plan: what is mapped at each address, what loaders and tools are led to, and the section table
have to be the same in both files, or differ as `memory` and `sections` can explain.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.records import PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE
from cfi2sframe.errors import ChangedError, ElfError
from cfi2sframe.rewrite.reread.mapped import check_memory
from cfi2sframe.rewrite.reread.sections import check_sections
from cfi2sframe.rewrite.reread.view import (
    View,
    expect,
    failure,
    file_range,
    first_difference,
    is_zero,
    view_of,
    without,
)

if TYPE_CHECKING:
    from cfi2sframe.elf.records import Buffer, FileData, ProgramHeader
    from cfi2sframe.rewrite.reread.view import Range

#: A header of SFrame, its magic number and its versions: enough to know a section by.
_SFRAME_HEADER = "HBBBbbBIIIII"
_SFRAME_MAGIC = 0xDEE2
_SFRAME_VERSIONS = (1, 2, 3)


class Expected(NamedTuple):
    """Where `.sframe` has to be, its size in bytes, and where the program headers are if they moved."""

    section_vaddr: int
    section_size: int
    table_file_offset: int | None = None


def check_rewritten(original: FileData, rewritten: FileData, place: Expected, section: Buffer | None) -> None:
    """Raise `EmbedError` unless `rewritten` is `original`, which has no SFrame section, with one at its place.

    `section` is what it must hold. Raises `InputError` when one of the files cannot be read.
    """
    before, after = _views(original, rewritten)
    table = before.header.program_headers_offset if place.table_file_offset is None else place.table_file_offset
    expect(after.header.program_headers_offset == table, "the program headers are elsewhere")
    expect(not before.sframe_indices() and not _entries(before), "there was a section already")
    _check_section(after, place, section)
    _check_pair(before, after, is_removal=False)
    _check_headers(after)


def check_replaced(original: FileData, rewritten: FileData, place: Expected, section: Buffer | None) -> None:
    """Raise `EmbedError` unless only the bytes of an SFrame section differ, its size and its type.

    The section has become no larger; the rest of its place is zeros.
    """
    before, after = _views(original, rewritten)
    old = _loaded_section(before)
    new = _check_section(after, place, section)
    expect(old[0] == new[0] and new[1] <= old[1], "the section is not where the old one was")
    changed = [old]
    for view in (before, after):
        start = view.table[0]
        changed += [
            _item(start, PROGRAM_HEADER_SIZE, i) for i, s in enumerate(view.segments) if s.type == c.PT_GNU_SFRAME
        ]
        start = view.section_table[0]
        changed += [_item(start, SECTION_HEADER_SIZE, index) for index in view.sframe_indices()]
    entry, other = _entries(before)[0], _entries(after)[0]
    expect(entry._replace(file_size=0, memory_size=0) == other._replace(file_size=0, memory_size=0), "another segment")
    first, second = (view.sections[view.sframe_indices()[0]] for view in (before, after))
    expect(first._replace(type=0, size=0) == second._replace(type=0, size=0), "the section header changed")
    expect(is_zero(rewritten, (new[1], old[1])), "something is left of the old section")
    expect(len(original) == len(rewritten), "the file has another size")
    for unchanged in without([(0, len(original))], changed):
        expect(first_difference(original, rewritten, unchanged) is None, "something else changed")


def _item(start: int, size: int, index: int) -> Range:
    return start + size * index, start + size * (index + 1)


def check_removed(original: FileData, rewritten: FileData) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without its SFrame section, and nothing else.

    Raises `InputError` when one of the files cannot be read.
    """
    before, after = _views(original, rewritten)
    expect(not after.sframe_indices() and not _entries(after), "the section is still there")
    _check_pair(after, before, is_removal=True)
    _check_headers(after)


def _views(original: FileData, rewritten: FileData) -> tuple[View, View]:
    try:
        return view_of(original), view_of(rewritten)
    except ChangedError:
        raise
    except ElfError as error:
        raise failure(f"it does not parse: {error}") from error


def _check_pair(bare: View, full: View, *, is_removal: bool) -> None:
    indices = full.sframe_indices()
    place = _loaded_section(full)
    section = indices[0] if indices else None
    moved = check_sections(bare, full, section, is_removal=is_removal)
    check_memory(bare, full, place, moved)


def _entries(view: View) -> list[ProgramHeader]:
    return [segment for segment in view.segments if segment.type == c.PT_GNU_SFRAME]


def _loaded_section(view: View) -> Range:
    """Return where the SFrame section is; an empty range when it is not loaded.

    Raises `EmbedError` when the headers disagree about it, or only one speaks of it and nothing of the kind is there.
    """
    entries, indices = _entries(view), view.sframe_indices()
    expect(len(entries) <= 1 and len(indices) <= 1, "there are several SFrame sections")
    if entries and indices:
        entry, section = entries[0], view.sections[indices[0]]
        same = (entry.vaddr, entry.file_offset) == (section.vaddr, section.file_offset)
        # GNU ld 2.44 to 2.47 counts what it discards of the section into PT_GNU_SFRAME.
        same &= entry.file_size == section.size or (
            entry.file_size > section.size and _is_sframe(view, file_range(section))
        )
        expect(same, "PT_GNU_SFRAME and the section header lead to different places")
        return file_range(section)
    expect(bool(entries or indices), "there is no SFrame section")
    place = file_range(entries[0] if entries else view.sections[indices[0]])
    if indices and not view.sections[indices[0]].flags & c.SHF_ALLOC:
        return place[0], place[0]
    expect(_is_sframe(view, place), "what the only header of the SFrame section leads to is none")
    return place


def _is_sframe(view: View, place: Range) -> bool:
    """Say whether bytes are an SFrame section as far as its header tells, of that size."""
    size = struct.calcsize(view.order + _SFRAME_HEADER)
    if place[1] - place[0] < size:
        return False
    fields = struct.unpack(view.order + _SFRAME_HEADER, view.bytes_of((place[0], place[0] + size)))
    end = size + fields[6] + fields[11] + fields[9]
    return fields[0] == _SFRAME_MAGIC and fields[1] in _SFRAME_VERSIONS and end == place[1] - place[0]


def _check_headers(view: View) -> None:
    """The headers make sense to a kernel, a loader and the tools."""
    _check_loads(view)
    _check_table(view)
    ranges = [view.section_table] if view.sections else []
    ranges += [file_range(section) for i, section in enumerate(view.sections) if view.is_in_file(i)]
    ranges.sort()
    for before, after in pairwise(ranges):
        expect(before[1] <= after[0], "sections overlap in the file")
    expect(not ranges or ranges[-1][1] <= len(view.data), "a section leaves the file")


def _check_loads(view: View) -> None:
    loads = view.loads()
    for load in loads:
        expect(load.file_offset + load.file_size <= len(view.data), "a PT_LOAD leaves the file")
        expect(load.file_size <= load.memory_size, "a PT_LOAD is smaller in memory than in the file")
        congruent = (load.vaddr - load.file_offset) % max(load.alignment, 1) == 0
        expect(congruent, "a PT_LOAD is not congruent to its file offset")
    for before, after in pairwise(loads):
        expect(before.end_vaddr <= after.vaddr, "PT_LOAD segments overlap or are out of order")


def _check_table(view: View) -> None:
    """The program headers are loaded, PT_PHDR leads to them, and programs of old kernels find them too.

    Kernels before 5.18 count from the first segment, wherever the table is.
    """
    start, end = view.table
    loads = view.loads()
    holder = next((s for s in loads if s.file_offset <= start and end <= s.file_offset + s.file_size), None)
    for entry in (segment for segment in view.segments if segment.type == c.PT_PHDR):
        expect(file_range(entry) == (start, end), "PT_PHDR leads elsewhere")
        same = holder is not None and holder.vaddr - holder.file_offset == entry.vaddr - entry.file_offset
        expect(same, "PT_PHDR gives another address than its segment")
    is_program = view.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in view.segments)
    if holder is not None and is_program:
        first = loads[0].vaddr - loads[0].file_offset
        expect(holder.vaddr - holder.file_offset == first, "old kernels would look for the headers elsewhere")


def _check_section(view: View, place: Expected, section: Buffer | None) -> Range:
    """Return where the section is in the file."""
    entries = _entries(view)
    expect(len(entries) == 1, f"{len(entries)} PT_GNU_SFRAME segments instead of one")
    entry = entries[0]
    found = (entry.vaddr, entry.file_size, entry.memory_size)
    expect(found == (place.section_vaddr, place.section_size, place.section_size), "PT_GNU_SFRAME is elsewhere")
    holders = [
        load
        for load in view.loads()
        if load.vaddr <= entry.vaddr
        and entry.vaddr + entry.memory_size <= load.vaddr + load.file_size
        and entry.vaddr - load.vaddr == entry.file_offset - load.file_offset
    ]
    expect(len(holders) == 1, "PT_GNU_SFRAME lies in no PT_LOAD")
    expect(holders[0].flags & (c.PF_R | c.PF_W) == c.PF_R, "PT_GNU_SFRAME is not read-only")
    if view.sections:
        expect(len(view.sframe_indices()) == 1, "there is no section called .sframe, or several")
    start, end = _loaded_section(view) if view.sections else file_range(entry)
    if section is not None:
        same = end - start == len(section) and view.bytes_of((start, end)) == bytes(section)
        expect(same, "the bytes of .sframe are others")
    return start, end
