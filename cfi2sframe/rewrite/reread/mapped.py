# SPDX-License-Identifier: Apache-2.0
"""Compare what is mapped of a file without an SFrame section (`bare`) and of the same file with one (`full`).

The rules are the same whichever file was made from the other: the same bytes are mapped, except for the changes that
this module allows. Bytes are compared by file offsets, because each segment has to have the same place and address in
both files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import differences, first_difference, is_zero
from cfi2sframe.elf.headers import DYNAMIC_ENTRY_SIZE, FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from cfi2sframe.elf.ranges import Span, common, holder_of, touches, united, without
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.rewrite.loader_notes import notes_in, require_nothing
from cfi2sframe.rewrite.note_addresses import SPECIFIED_OWNERS, may_be_elsewhere
from cfi2sframe.rewrite.reread.dynamic import MOVABLE_TAGS, Dynamic
from cfi2sframe.rewrite.reread.view import FileView, Loads, expect, failure

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ProgramHeader

#: Segments that describe single sections, and move with them.
_FOLLOWING = frozenset({c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY})
#: Program headers that are compared separately, or that have no meaning.
_SPECIAL = frozenset({c.PT_LOAD, c.PT_GNU_SFRAME, c.PT_NULL, c.PT_PHDR})
#: In how many segments that moved a byte of the file may be, on average.
_MAX_OVERLAP = 16
_PAGE_SIZE = 1 << 12
#: The most bytes of address space between the last segment and a new one, which only alignment separates.
_MAX_DISTANCE = 1 << 31
#: The shortest run that patchelf leaves: it overwrites a section that it has moved with X.
_X_RUN = b"X" * 8
#: patchelf moves no larger section (bytes).
_LARGEST_X_RANGE = 1 << 24


class Moved(NamedTuple):
    """A loaded section whose address differs between the files: its index and its file offsets in either."""

    bare_index: int
    full_index: int
    bare: Span
    full: Span


def check_memory(bare: FileView, full: FileView, section: Span, moved: list[Moved]) -> None:
    """Raise `EmbedError` unless two files map the same bytes, except for the SFrame section, `section` of the full one.

    Headers may differ, and so may sections that moved and what refers to them. `section` are file offsets, empty when
    the SFrame section is not loaded.
    """
    _check_header(bare, full)
    _check_loads(bare, full, section)
    _check_others(bare, full, [section, *(place for one in moved for place in (one.bare, one.full))])
    dynamic, full_dynamic = Dynamic(bare), Dynamic(full)
    tags = _check_dynamic(dynamic, full_dynamic, moved)
    _check_moved(bare, full, moved, tags)
    for tag in sorted({tag for found in tags.values() for tag in found}):
        _check_whole(dynamic, full_dynamic, tag, moved)
    patched = [dynamic.place]
    if (symbols := _symbol_table(bare, dynamic)) is not None:
        patched.append(symbols)
    used_bare = [*_headers(bare), *(one.bare for one in moved)]
    used_full = [*_headers(full), *(one.full for one in moved), section]
    _check_bytes(bare, full, used_bare, used_full, patched)


def _check_header(bare: FileView, full: FileView) -> None:
    for field in ("ident", "type", "machine", "version", "entry_vaddr", "flags", "header_size", "program_header_size"):
        expect(getattr(bare.header, field) == getattr(full.header, field), f"the file header's {field} changed")


def _check_loads(bare: FileView, full: FileView, section: Span) -> None:
    """Check that PT_LOAD entries have the same place and rights; read-only ones may be larger, and one may be new."""
    old, new = bare.loads(), full.loads()
    expect(len(new) - len(old) in (0, 1), "there are more or fewer PT_LOAD segments")
    for before, after in zip(old, new, strict=False):
        same = before._replace(file_size=0, memory_size=0) == after._replace(file_size=0, memory_size=0)
        expect(same, f"the segment at 0x{before.vaddr:x} changed")
        if before != after:
            growth = after.file_size - before.file_size
            expect(growth == after.memory_size - before.memory_size >= 0, "a segment changed its size")
            expect(before.file_size == before.memory_size, "a segment with .bss changed its size")
            expect(not before.flags & c.PF_W, "a writable segment changed its size")
    for added in new[len(old) :]:
        expect(added.flags == c.PF_R and added.file_size == added.memory_size, "the new segment is not read-only")
        holds_section = section.start < section.end and holder_of([added.file_span], section) is not None
        expect(holds_section, "the new segment does not hold .sframe")
        last = max((load.end_vaddr for load in old), default=0)
        expect(last <= added.vaddr < last + _MAX_DISTANCE, "the new segment is not right after the others")
        expect(added.alignment <= max(_PAGE_SIZE, *(load.alignment for load in old)), "a new alignment")


def _check_others(bare: FileView, full: FileView, touched: list[Span]) -> None:
    """Compare the other program headers.

    The full file may lack the PT_NOTE that repeats PT_GNU_PROPERTY, if no loader refuses a program for such a note,
    PT_PHDR where nothing reads it, and PF_X of PT_PHDR, by which nothing is mapped. A segment that did not move must
    not have any of the bytes `touched`.
    """
    expect(sum(s.type == c.PT_GNU_SFRAME for s in full.segments) <= 1, "there are several PT_GNU_SFRAME segments")
    expect(all(s.type != c.PT_GNU_SFRAME for s in bare.segments), "there is a PT_GNU_SFRAME segment")
    old = [segment for segment in bare.segments if segment.type not in _SPECIAL]
    new = [segment for segment in full.segments if segment.type not in _SPECIAL]
    spare = len(old) - len(new)
    expect(spare in (0, 1), "there are more or fewer program headers")
    at = total_size = 0
    changed_bytes = united(touched)
    followers = _Followers(bare, full)
    for before in old:
        after = new[at] if at < len(new) else None
        if spare and (after is None or not _corresponds(before, after)):
            expect(followers.is_repeated(before), "a program header is missing, or new")
            spare = 0
            continue
        if after is None or not _corresponds(before, after):
            raise failure(f"a program header of type {before.type:#x} changed")
        at += 1
        if before != after:
            total_size += before.file_size
            expect(total_size <= _MAX_OVERLAP * len(bare.data), "segments overlap one another too often")
            followers.check(before, after)
        else:
            is_apart = not touches(changed_bytes, before.file_span)
            expect(is_apart, f"bytes of a segment of type {before.type:#x} changed")
    entries, others = ([s for s in view.segments if s.type == c.PT_PHDR] for view in (bare, full))
    is_static = bare.header.type == c.ET_EXEC and not any(s.type in (c.PT_INTERP, c.PT_DYNAMIC) for s in bare.segments)
    expect(len(entries) == len(others) or (not others and is_static), "PT_PHDR is missing, or new")
    for before, after in zip(entries, others, strict=False):
        expect(after.flags in (before.flags, before.flags & ~c.PF_X), "the rights of PT_PHDR changed")


def _corresponds(before: ProgramHeader, after: ProgramHeader) -> bool:
    if before == after:
        return True
    fixed = (before.type, before.flags, before.alignment) == (after.type, after.flags, after.alignment)
    return fixed and before.type in _FOLLOWING and (before.type == c.PT_NOTE or before.file_size == after.file_size)


class _Followers:
    """The segments that move with small sections, in both files."""

    def __init__(self, bare: FileView, full: FileView) -> None:
        self._bare, self._full = bare, full
        self._bare_loads, self._full_loads = Loads(bare), Loads(full)
        self._properties = {s for s in bare.segments if s.type == c.PT_GNU_PROPERTY}

    def is_repeated(self, segment: ProgramHeader) -> bool:
        """Whether this PT_NOTE repeats PT_GNU_PROPERTY, with notes that no loader refuses a program for."""
        twin = segment._replace(type=c.PT_GNU_PROPERTY)
        if segment.type != c.PT_NOTE or twin not in self._properties or not _is_mapped(self._bare_loads, segment):
            return False
        return require_nothing(self._bare.bytes_of(segment.file_span), self._bare.order, segment.alignment)

    def check(self, before: ProgramHeader, after: ProgramHeader) -> None:
        """Check that a segment that moved has the same contents; the full file's PT_NOTE may lack harmless notes."""
        is_mapped = _is_mapped(self._bare_loads, before) and _is_mapped(self._full_loads, after)
        expect(is_mapped, f"a segment of type {before.type:#x} has moved, and is not mapped")
        old, new = self._bare.bytes_of(before.file_span), self._full.bytes_of(after.file_span)
        if old == new:
            return
        expect(before.type == c.PT_NOTE, f"the contents of a segment of type {before.type:#x} changed")
        had, has = (notes_in(content, self._bare.order, before.alignment) for content in (old, new))
        if had is None or has is None or not {n.identity for n in has} <= {n.identity for n in had}:
            raise failure("a PT_NOTE has other notes")
        kept = {note.identity for note in has}
        lost = [note for note in had if note.identity not in kept]
        expect(not any(note.is_build_id for note in lost), "the build-id differs")
        are_named = all(note.owner in SPECIFIED_OWNERS for note in lost)
        expect(are_named, "a PT_NOTE has lost or gained a note that is found by nothing else")
        harmless = require_nothing(b"".join(note.raw for note in lost), self._bare.order, before.alignment)
        expect(harmless, "a PT_NOTE has lost or gained a note that matters")


def _is_mapped(loads: Loads, segment: ProgramHeader) -> bool:
    """Whether all bytes of a segment are mapped at its addresses."""
    is_whole = segment.file_size == segment.memory_size
    return is_whole and loads.file_offset_of(segment.vaddr, segment.file_size) == segment.file_offset


def _check_dynamic(bare: Dynamic, full: Dynamic, moved: list[Moved]) -> dict[int, list[int]]:
    """Check that the entries of PT_DYNAMIC are the same, except for the addresses of tables that have moved.

    Returns the tags of those tables, by their address in the bare file.
    """
    expect(bare.place == full.place and len(bare.entries) == len(full.entries), "PT_DYNAMIC changed")
    addresses = {(bare.view.sections[m.bare_index].vaddr, full.view.sections[m.full_index].vaddr) for m in moved}
    left = united(
        (view.sections[index].vaddr, view.sections[index].vaddr + view.sections[index].size)
        for m in moved
        for view, index in ((bare.view, m.bare_index), (full.view, m.full_index))
    )
    found: dict[int, list[int]] = {}
    for (tag, old), (other, new) in zip(bare.entries, full.entries, strict=True):
        expect(tag == other, "the tag of a dynamic entry changed")
        if old != new:
            expect(tag in MOVABLE_TAGS and (old, new) in addresses, f"dynamic entry {tag:#x} changed")
            found.setdefault(old, []).append(tag)
        elif tag in MOVABLE_TAGS:
            expect(
                holder_of(left, Span(old, old + 1)) is None,
                f"dynamic entry {tag:#x} has the address of a section that moved away",
            )
    rest = Span(bare.place.start + DYNAMIC_ENTRY_SIZE * len(bare.entries), bare.place.end)
    expect(first_difference(bare.view.data, full.view.data, rest) is None, "bytes after the dynamic entries changed")
    return found


def _check_moved(bare: FileView, full: FileView, moved: list[Moved], tags: dict[int, list[int]]) -> None:
    """Check that the sections that moved may move: read-only data to which a program header or dynamic entry refers."""
    loads = (Loads(bare), Loads(full))
    followed = united(segment.file_span for segment in bare.segments if segment.type in _FOLLOWING)
    for one in moved:
        old, new = bare.sections[one.bare_index], full.sections[one.full_index]
        name = shown_name(bare.names[one.bare_index])
        expect(not old.flags & (c.SHF_WRITE | c.SHF_EXECINSTR), f"section {name} may not move")
        is_mapped = loads[0].file_offset_of(old.vaddr, old.size) == old.file_offset
        is_mapped &= loads[1].file_offset_of(new.vaddr, new.size) == new.file_offset
        expect(is_mapped, f"section {name} has moved, and is not mapped")
        if old.type == c.SHT_NOTE:
            _check_moved_notes(bare, full, one, name)
        is_found = old.vaddr in tags or holder_of(followed, one.bare) is not None or old.type == c.SHT_NOTE
        expect(is_found, f"section {name} has moved, and nothing refers to its new place")


def _check_moved_notes(bare: FileView, full: FileView, one: Moved, name: str) -> None:
    """Check that notes that moved mean the same at both addresses."""
    for view, index in ((bare, one.bare_index), (full, one.full_index)):
        section, loads = view.sections[index], view.loads()
        image = range(min(load.vaddr for load in loads), max(load.end_vaddr for load in loads))
        content = view.bytes_of(section.file_span)
        is_same = may_be_elsewhere(content, view.order, section.alignment, section.vaddr, image)
        expect(is_same, f"section {name} has moved, and has addresses relative to itself")


def _check_whole(bare: Dynamic, full: Dynamic, tag: int, moved: list[Moved]) -> None:
    """Check that all of a moved table, of the size that its readers derive, was in the section that moved."""
    size = next(m.bare.end - m.bare.start for m in moved if bare.view.sections[m.bare_index].vaddr == bare.value(tag))
    try:
        needed = max(bare.table_size(tag), full.table_size(tag))
    except ValueError as error:
        raise failure(f"the table of dynamic entry {tag:#x} cannot be read: {error}") from error
    expect(needed <= size, f"the table of dynamic entry {tag:#x} is larger than the section that has moved")


def _symbol_table(view: FileView, dynamic: Dynamic) -> Span | None:
    """Return where the dynamic symbols are in the file; None without an SHT_DYNSYM section at DT_SYMTAB."""
    vaddr = dynamic.value(c.DT_SYMTAB)
    for section in view.sections:
        if section.type == c.SHT_DYNSYM and section.vaddr == vaddr:
            return section.file_span
    return None


def _headers(view: FileView) -> list[Span]:
    return [Span(0, FILE_HEADER_SIZE), view.table, view.section_table]


def _check_bytes(
    bare: FileView, full: FileView, used_bare: list[Span], used_full: list[Span], patched: list[Span]
) -> None:
    """Compare the bytes of segments, except those that other checks compare: `used_bare`, `used_full`, `patched`.

    Bytes that only one of the files uses have to be free in the other one.
    """
    fixed = [segment.file_span for segment in {*bare.segments} & {*full.segments} if segment.type not in _SPECIAL]
    scopes = [united([*(load.file_span for load in view.loads()), *fixed]) for view in (bare, full)]
    for place in without(common(*scopes), [*used_bare, *used_full, *patched]):
        for run in differences(bare.data, full.data, place):
            are_free = _is_free(bare, run) and _is_free(full, run)
            expect(are_free, f"loaded bytes at file offset 0x{run.start:x} changed")
    in_bare, in_full = scopes
    for place in without(in_full, [*in_bare, *used_full]):
        expect(_is_free(full, place), "a new part of a segment is not empty")
    expect(not without(in_bare, [*in_full, *used_bare]), "a part of a segment is missing")
    for place in without(common(in_bare, used_full), used_bare):
        expect(_is_free(bare, place), f"bytes at file offset 0x{place.start:x} are in use without the section")
    stale = _stale_table(bare, full)
    for place in without(common(in_full, used_bare), [*used_full, *stale]):
        same = first_difference(bare.data, full.data, place) is None
        expect(same or _is_free(full, place), f"bytes at file offset 0x{place.start:x} are in use with the section")


def _is_free(view: FileView, place: Span) -> bool:
    """Whether bytes are zeros, or runs of X, which patchelf writes where a section was."""
    if is_zero(view.data, place):
        return True
    if place.end - place.start > _LARGEST_X_RANGE or view.bytes_of(place).translate(None, b"\0X"):
        return False
    return _X_RUN in view.bytes_of(Span(max(0, place.start - len(_X_RUN)), place.end + len(_X_RUN)))


def _stale_table(bare: FileView, full: FileView) -> list[Span]:
    """Return the span of the old program header table where the full file has moved the table and kept the old one."""
    start, end = bare.table
    if full.table.start == start:
        return []
    # p_type and p_flags identify an entry: tools change the rest when they move things.
    keys = [Span(at, at + 8) for at in range(start, end, PROGRAM_HEADER_SIZE)]
    same = all(bare.bytes_of(key) == full.bytes_of(key) for key in keys)
    return [bare.table] if same else []
