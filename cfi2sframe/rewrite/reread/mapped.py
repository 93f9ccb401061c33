# SPDX-License-Identifier: Apache-2.0
"""What is mapped of a file without a section and of the same file with one: the same bytes, but for what is explained.

Two files are compared, `bare` and `full`: whichever of them was made of the other, the rules are the same. Addresses
follow from file offsets, since each segment has to be where it was in the file and in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.records import DYNAMIC_ENTRY_SIZE, FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.rewrite.notes import ask_for_nothing, notes_in
from cfi2sframe.rewrite.reread.dynamic import MOVABLE_TAGS, Dynamic
from cfi2sframe.rewrite.reread.view import (
    Loads,
    Range,
    View,
    common,
    differences,
    expect,
    failure,
    file_range,
    first_difference,
    holder_of,
    is_zero,
    touches,
    united,
    without,
)

if TYPE_CHECKING:
    from cfi2sframe.elf.records import ProgramHeader

#: Segments that lead to a section by its place in the file, and that may follow it.
_FOLLOWING = frozenset({c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY})
#: Program headers that are compared in a way of their own, or that say nothing.
_SPECIAL = frozenset({c.PT_LOAD, c.PT_GNU_SFRAME, c.PT_NULL, c.PT_PHDR})
#: How often each byte of a file may be in segments that have moved, on average.
_MAX_OVERLAP = 16
_PAGE_SIZE = 1 << 12
#: Alignment and .bss aside, a program takes no more addresses than before.
_MAX_DISTANCE = 1 << 31
#: The shortest run that patchelf overwrites.
_X_RUN = b"X" * 8
#: It moves no larger section (bytes); whatever else is as large is in use.
_LARGEST_X_RANGE = 1 << 24


class Moved(NamedTuple):
    """A loaded section that has another address in the other file: its indices, and its ranges of the files."""

    bare_index: int
    full_index: int
    bare: Range
    full: Range


def check_memory(bare: View, full: View, section: Range, moved: list[Moved]) -> None:
    """Raise `EmbedError` unless two files are mapped alike, but for the SFrame section at `section` of the full one.

    What differs is explained: the headers, sections that have moved and what leads to them. `section` is empty when it
    is not loaded.
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


def _check_header(bare: View, full: View) -> None:
    for field in ("ident", "type", "machine", "version", "entry_vaddr", "flags", "header_size", "program_header_size"):
        expect(getattr(bare.header, field) == getattr(full.header, field), f"the file header's {field} changed")


def _check_loads(bare: View, full: View, section: Range) -> None:
    """Each PT_LOAD keeps its place and rights; a read-only one may have grown, and one may have been added."""
    old, new = bare.loads(), full.loads()
    expect(len(new) - len(old) in (0, 1), "there are more or fewer PT_LOAD segments")
    for before, after in zip(old, new, strict=False):
        same = before._replace(file_size=0, memory_size=0) == after._replace(file_size=0, memory_size=0)
        expect(same, f"the segment at 0x{before.vaddr:x} is another one")
        if before != after:
            growth = after.file_size - before.file_size
            expect(growth == after.memory_size - before.memory_size >= 0, "a segment changed its size")
            expect(before.file_size == before.memory_size, "a segment with .bss changed its size")
            expect(not before.flags & c.PF_W, "a writable segment changed its size")
    for added in new[len(old) :]:
        expect(added.flags == c.PF_R and added.file_size == added.memory_size, "the new segment is not read-only")
        start, end = file_range(added)
        expect(start <= section[0] < section[1] <= end, "the new segment does not hold .sframe")
        last = max((load.end_vaddr for load in old), default=0)
        expect(last <= added.vaddr < last + _MAX_DISTANCE, "the new segment is not right after the others")
        expect(added.alignment <= max(_PAGE_SIZE, *(load.alignment for load in old)), "a new alignment")


def _check_others(bare: View, full: View, touched: list[Range]) -> None:
    """Compare the other program headers.

    The full file may lack the PT_NOTE that repeats PT_GNU_PROPERTY, as long as the note asks for nothing, and PT_PHDR
    where nothing reads it. A segment that stays where it is holds none of the bytes `touched`.
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
            raise failure(f"a program header of type {before.type:#x} is another one")
        at += 1
        if before != after:
            total_size += before.file_size
            expect(total_size <= _MAX_OVERLAP * len(bare.data), "segments overlap one another over and over")
            followers.check(before, after)
        else:
            is_apart = not touches(changed_bytes, file_range(before))
            expect(is_apart, f"bytes of a segment of type {before.type:#x} changed")
    entries = [sum(s.type == c.PT_PHDR for s in view.segments) for view in (bare, full)]
    is_static = bare.header.type == c.ET_EXEC and not any(s.type in (c.PT_INTERP, c.PT_DYNAMIC) for s in bare.segments)
    expect(entries[0] == entries[1] or (entries[1] == 0 and is_static), "PT_PHDR is gone, or new")


def _corresponds(before: ProgramHeader, after: ProgramHeader) -> bool:
    if before == after:
        return True
    fixed = (before.type, before.flags, before.alignment) == (after.type, after.flags, after.alignment)
    return fixed and before.type in _FOLLOWING and (before.type == c.PT_NOTE or before.file_size == after.file_size)


class _Followers:
    """Segments that lead to small sections, in both files."""

    def __init__(self, bare: View, full: View) -> None:
        self._bare, self._full = bare, full
        self._bare_loads, self._full_loads = Loads(bare), Loads(full)
        self._properties = {s for s in bare.segments if s.type == c.PT_GNU_PROPERTY}

    def is_repeated(self, segment: ProgramHeader) -> bool:
        """Say whether this is a PT_NOTE for what PT_GNU_PROPERTY leads to, of notes that ask for nothing."""
        twin = segment._replace(type=c.PT_GNU_PROPERTY)
        if segment.type != c.PT_NOTE or twin not in self._properties or not _is_mapped(self._bare_loads, segment):
            return False
        return ask_for_nothing(self._bare.bytes_of(file_range(segment)), self._bare.order, segment.alignment)

    def check(self, before: ProgramHeader, after: ProgramHeader) -> None:
        """A segment that has followed a section holds the same; of notes, the full file may have lost some."""
        is_mapped = _is_mapped(self._bare_loads, before) and _is_mapped(self._full_loads, after)
        expect(is_mapped, f"a segment of type {before.type:#x} has moved, and is not mapped")
        old, new = self._bare.bytes_of(file_range(before)), self._full.bytes_of(file_range(after))
        if old == new:
            return
        expect(before.type == c.PT_NOTE, f"the content of a segment of type {before.type:#x} changed")
        had, has = (notes_in(content, self._bare.order, before.alignment) for content in (old, new))
        if had is None or has is None or not {n[:3] for n in has} <= {n[:3] for n in had}:
            raise failure("a PT_NOTE leads to other notes")
        kept = {note[:3] for note in has}
        lost = [note for note in had if note[:3] not in kept]
        expect(not any(note.is_build_id for note in lost), "the build-id differs")
        harmless = ask_for_nothing(b"".join(note.raw for note in lost), self._bare.order, before.alignment)
        expect(harmless, "a PT_NOTE has lost or gained a note that matters")


def _is_mapped(loads: Loads, segment: ProgramHeader) -> bool:
    """Say whether a segment's bytes are where its addresses say, all of them."""
    is_whole = segment.file_size == segment.memory_size
    return is_whole and loads.file_offset_of(segment.vaddr, segment.file_size) == segment.file_offset


def _check_dynamic(bare: Dynamic, full: Dynamic, moved: list[Moved]) -> dict[int, list[int]]:
    """The entries of PT_DYNAMIC are the same, but for the addresses of tables that have moved.

    Return the tags of those, by the address in the bare file.
    """
    expect(bare.place == full.place and len(bare.entries) == len(full.entries), "PT_DYNAMIC is another one")
    addresses = {(bare.view.sections[m.bare_index].vaddr, full.view.sections[m.full_index].vaddr) for m in moved}
    left = united(
        (view.sections[index].vaddr, view.sections[index].vaddr + view.sections[index].size)
        for m in moved
        for view, index in ((bare.view, m.bare_index), (full.view, m.full_index))
    )
    found: dict[int, list[int]] = {}
    for (tag, old), (other, new) in zip(bare.entries, full.entries, strict=True):
        expect(tag == other, "a dynamic entry is another one")
        if old != new:
            expect(tag in MOVABLE_TAGS and (old, new) in addresses, f"dynamic entry {tag:#x} changed")
            found.setdefault(old, []).append(tag)
        elif tag in MOVABLE_TAGS:
            expect(holder_of(left, (old, old + 1)) is None, f"dynamic entry {tag:#x} leads nowhere")
    rest = bare.place[0] + DYNAMIC_ENTRY_SIZE * len(bare.entries), bare.place[1]
    expect(first_difference(bare.view.data, full.view.data, rest) is None, "bytes after the dynamic entries changed")
    return found


def _check_moved(bare: View, full: View, moved: list[Moved], tags: dict[int, list[int]]) -> None:
    """A section may move when nothing but a program header or a dynamic entry leads to it."""
    loads = (Loads(bare), Loads(full))
    followed = united(file_range(segment) for segment in bare.segments if segment.type in _FOLLOWING)
    for one in moved:
        old, new = bare.sections[one.bare_index], full.sections[one.full_index]
        name = shown_name(bare.names[one.bare_index])
        expect(not old.flags & (c.SHF_WRITE | c.SHF_EXECINSTR), f"section {name} may not move")
        is_mapped = loads[0].file_offset_of(old.vaddr, old.size) == old.file_offset
        is_mapped &= loads[1].file_offset_of(new.vaddr, new.size) == new.file_offset
        expect(is_mapped, f"section {name} has moved, and is not mapped")
        is_led_to = old.vaddr in tags or holder_of(followed, one.bare) is not None or old.type == c.SHT_NOTE
        expect(is_led_to, f"section {name} has moved, and nothing leads to it")


def _check_whole(bare: Dynamic, full: Dynamic, tag: int, moved: list[Moved]) -> None:
    """A table that has moved is within the section of which the bytes moved, as those find it who read it."""
    size = next(m.bare[1] - m.bare[0] for m in moved if bare.view.sections[m.bare_index].vaddr == bare.value(tag))
    try:
        needed = max(bare.table_size(tag), full.table_size(tag))
    except ValueError as error:
        raise failure(f"what dynamic entry {tag:#x} leads to cannot be read: {error}") from error
    expect(needed <= size, f"what dynamic entry {tag:#x} leads to is more than the section that has moved")


def _symbol_table(view: View, dynamic: Dynamic) -> Range | None:
    """Return where the dynamic symbols are, when a section of theirs is where the dynamic linker finds them."""
    vaddr = dynamic.value(c.DT_SYMTAB)
    for section in view.sections:
        if section.type == c.SHT_DYNSYM and section.vaddr == vaddr:
            return file_range(section)
    return None


def _headers(view: View) -> list[Range]:
    return [(0, FILE_HEADER_SIZE), view.table, view.section_table]


def _check_bytes(bare: View, full: View, used_bare: list[Range], used_full: list[Range], patched: list[Range]) -> None:
    """Bytes of segments are the same where neither file uses them for something that is compared elsewhere.

    What only one of the files uses means nothing in the other one.
    """
    fixed = [file_range(segment) for segment in {*bare.segments} & {*full.segments} if segment.type not in _SPECIAL]
    scopes = [united([*map(file_range, view.loads()), *fixed]) for view in (bare, full)]
    for place in without(common(*scopes), [*used_bare, *used_full, *patched]):
        for run in differences(bare.data, full.data, place):
            are_free = _is_free(bare, run) and _is_free(full, run)
            expect(are_free, f"loaded bytes at file offset 0x{run[0]:x} changed")
    for place in without(scopes[1], [*scopes[0], *used_full]):
        expect(_is_free(full, place), "a new part of a segment is not empty")
    expect(not without(scopes[0], [*scopes[1], *used_bare]), "a part of a segment is gone")
    for place in without(common(scopes[0], used_full), used_bare):
        expect(_is_free(bare, place), f"bytes at file offset 0x{place[0]:x} are in use without the section")
    stale = _stale_table(bare, full)
    for place in without(common(scopes[1], used_bare), [*used_full, *stale]):
        same = first_difference(bare.data, full.data, place) is None
        expect(same or _is_free(full, place), f"bytes at file offset 0x{place[0]:x} are in use with the section")


def _is_free(view: View, place: Range) -> bool:
    """Say whether bytes are zeros or, as patchelf leaves where a section was, runs of X."""
    if is_zero(view.data, place):
        return True
    if place[1] - place[0] > _LARGEST_X_RANGE or view.bytes_of(place).translate(None, b"\0X"):
        return False
    return _X_RUN in view.bytes_of((max(0, place[0] - len(_X_RUN)), place[1] + len(_X_RUN)))


def _stale_table(bare: View, full: View) -> list[Range]:
    """Return the range of a program header table that is out of use in the full file, whose own is elsewhere."""
    start, end = bare.table
    if full.table[0] == start:
        return []
    places = range(start, end, PROGRAM_HEADER_SIZE)
    same = all(bare.bytes_of((at, at + 8)) == full.bytes_of((at, at + 8)) for at in places)
    return [bare.table] if same else []
