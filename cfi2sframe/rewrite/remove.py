# SPDX-License-Identifier: Apache-2.0
"""Remove the `.sframe` section of a linked file: the reverse of `choose` and `insert`, derived from the file alone.

Sections that moved to make room for program headers are recognised by their place: they follow `.sframe` in its
segment. A PT_NOTE for `.note.gnu.property` is restored when there is only PT_GNU_PROPERTY, since every linker writes
both.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import (
    PF_R,
    PF_W,
    PF_X,
    PT_GNU_PROPERTY,
    PT_GNU_SFRAME,
    PT_LOAD,
    PT_NOTE,
    PT_PHDR,
    SHF_ALLOC,
    SHT_NOTE,
)
from cfi2sframe.elf.contents import is_zero
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, ProgramHeader, SectionHeader
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.edits import Splice, ordered, overwrite
from cfi2sframe.rewrite.following_segments import FollowingSegments
from cfi2sframe.rewrite.gate import LinkedFile, round_up
from cfi2sframe.rewrite.header_room import FIRST_PAGE_SIZE, HeadRegion, groups_of, head_region
from cfi2sframe.rewrite.movable import NewPlace, may_be_dropped, movable_sections
from cfi2sframe.rewrite.section_indices import changed_contents, numbering_without
from cfi2sframe.rewrite.section_table import without_section_header
from cfi2sframe.rewrite.table_at_end import segments_at_old_place, table_is_in

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Target(NamedTuple):
    """What is removed: the section's index, its file offsets `[start, end)`, and the PT_LOAD that holds it."""

    section_index: int | None
    start: int
    end: int
    load: ProgramHeader | None


def removal_splices(file: LinkedFile) -> tuple[Splice, ...]:
    """Return the splices that remove `.sframe` and PT_GNU_SFRAME from the file.

    Raises `EmbedError` when there is neither, or when symbols or section indices cannot be updated.
    """
    target = _find(file)
    if table_is_in(file, target.load) and _has_own_segment(file, target, ()):
        return _with_table_at_old_place(file, target)
    region = head_region(file)
    returning = _returning(file, region, target)
    own = _has_own_segment(file, target, returning)
    segments = _segments_without(file, region, target, returning, own=own)
    table_end = file.header.program_headers_offset + PROGRAM_HEADER_SIZE * len(segments)
    places = _old_places(file, region, returning, table_end)
    if returning and not places:
        # They do not fit, so they stay in their segment, and it is kept.
        returning, own = (), False
        segments = _segments_without(file, region, target, returning, own=own)
    vaddrs = {index: region.vaddr_of(offset) for index, offset in places.items()}
    segments = _followed(file, segments, places, vaddrs)
    segments = _shrunk(file, segments, target, set(returning))
    numbering = numbering_without(file, target.section_index, sorted(places, key=lambda index: places[index]))
    contents = changed_contents(file, numbering, vaddrs)
    splices = _head(file, region, segments, places, contents)
    splices += [
        overwrite(file.sections[index].file_offset, content)
        for index, content in contents.items()
        if index not in places
    ]
    splices += _cleared(file, target, region, returning, own=own)
    cuts = [cut] if own and (cut := _cut(file, target)) else []
    header = file.header._replace(program_header_count=len(segments))
    if file.sections:
        moved = {index: NewPlace(vaddrs[index], places[index]) for index in places}
        more, header = without_section_header(file, header, target.section_index, moved, numbering, cuts)
        splices += more
    splices += [Splice(cut.file_offset, cut.removed_size, b"") for cut in cuts]
    splices.append(overwrite(0, header.pack()))
    return ordered(splices)


def _with_table_at_old_place(file: LinkedFile, target: _Target) -> tuple[Splice, ...]:
    """Return the splices that remove the section's segment; the program headers in it return to their old place."""
    kept = [s for s in file.segments if s.type != PT_GNU_SFRAME and s is not target.load]
    segments = segments_at_old_place(file, kept)
    numbering = numbering_without(file, target.section_index, ())
    splices = [overwrite(FILE_HEADER_SIZE, b"".join(segment.pack(file.order) for segment in segments))]
    contents = changed_contents(file, numbering, {})
    splices += [overwrite(file.sections[index].file_offset, content) for index, content in contents.items()]
    cuts = [cut] if (cut := _cut(file, target)) else []
    header = file.header._replace(program_header_count=len(segments), program_headers_offset=FILE_HEADER_SIZE)
    if file.sections:
        more, header = without_section_header(file, header, target.section_index, {}, numbering, cuts)
        splices += more
    return ordered(
        [*splices, *(Splice(cut.file_offset, cut.removed_size, b"") for cut in cuts), overwrite(0, header.pack())]
    )


def _find(file: LinkedFile) -> _Target:
    """Return what is to be removed. Raises `EmbedError` when there is neither a section nor a segment."""
    index, segment = file.sframe_index(), file.sframe_segment()
    if index is not None:
        section: SectionHeader | ProgramHeader = file.sections[index]
        size = file.sections[index].size
    elif segment is not None:
        section, size = segment, segment.file_size
    else:
        raise EmbedError("the file has no .sframe section")
    start = section.file_offset
    load = next((load for load in file.loads if load.holds(section.vaddr, start, size)), None)
    return _Target(index, start, start + size, load)


def _contents(file: LinkedFile, load: ProgramHeader, without: Iterable[int]) -> list[int]:
    """Return the indices of the allocated sections in a PT_LOAD, except those in `without`."""
    left_out = set(without)
    return [
        index
        for index in file.indices_within(load.file_span)
        if index not in left_out and file.sections[index].flags & SHF_ALLOC
    ]


def _returning(file: LinkedFile, region: HeadRegion, target: _Target) -> tuple[int, ...]:
    """Return the indices of the sections that moved to make room for the program headers.

    They follow `.sframe` in its segment; a build-id note may be in the former slack of the first segment.
    """
    load = target.load
    if load is None or region.load is None:
        return ()
    after = [i for i in _contents(file, load, ()) if file.sections[i].file_offset >= target.end]
    load_end = load.file_span.end
    if not set(after) <= movable_sections(file, target.end, load_end):
        after = []
    first_end = region.load.file_offset + region.load.file_size
    noted: list[int] = []
    for group in groups_of(file, _later_notes(file, region, after), split_notes=False):
        if group.has_build_id and group.file_offset + group.size <= min(first_end, FIRST_PAGE_SIZE):
            noted += group.indices
    return (*noted, *after)


def _later_notes(file: LinkedFile, region: HeadRegion, without: list[int]) -> tuple[int, ...]:
    """Return the movable notes of the first segment that follow sections that cannot move, in file order."""
    if region.load is None:
        return ()
    end = region.load.file_offset + region.load.file_size
    movable = movable_sections(file, region.limit, end)
    found = [
        index
        for index in _contents(file, region.load, [*without, *region.movable])
        if index in movable and file.sections[index].type == SHT_NOTE
    ]
    return tuple(sorted(found, key=lambda index: file.sections[index].file_offset))


def _has_own_segment(file: LinkedFile, target: _Target, returning: tuple[int, ...]) -> bool:
    """Whether the section's PT_LOAD has nothing but the section and sections that return to the first segment."""
    load = target.load
    if load is None or load.flags & (PF_R | PF_W | PF_X) != PF_R or load is not file.loads[-1]:
        return False
    if load.file_span.end != file.loaded_end or load.file_size != load.memory_size:
        return False
    if not file.sections:
        return target.start - load.file_offset < 16
    left = [] if target.section_index is None else [target.section_index]
    return not _contents(file, load, [*left, *returning]) and _is_rest_empty(file, target, load, returning)


def _is_rest_empty(file: LinkedFile, target: _Target, load: ProgramHeader, returning: tuple[int, ...]) -> bool:
    """Whether a PT_LOAD has only zeros besides the section, sections that return, and program headers."""
    known: list[tuple[int, int]] = [file.sections[index].file_span for index in returning]
    known += [(target.start, target.end), (file.header.program_headers_offset, file.table_end)]
    position, end = load.file_offset, load.file_span.end
    for start, stop in [*sorted(known), (end, end)]:
        if not is_zero(file.data, Span(position, max(position, min(start, end)))):
            return False
        position = max(position, stop)
    return True


def _segments_without(
    file: LinkedFile, region: HeadRegion, target: _Target, returning: tuple[int, ...], *, own: bool
) -> list[ProgramHeader]:
    segments = [
        segment for segment in file.segments if segment.type != PT_GNU_SFRAME and not (own and segment is target.load)
    ]
    prop = next((segment for segment in segments if segment.type == PT_GNU_PROPERTY), None)
    notes = [index for index, segment in enumerate(segments) if segment.type == PT_NOTE]
    known = any(
        (segments[index].file_offset, segments[index].file_size) == (prop.file_offset, prop.file_size)
        for index in notes
        if prop
    )
    has_room = len(segments) < len(file.segments)
    if prop is not None and notes and not known and has_room and may_be_dropped(file, prop):
        stayed = prop.file_offset >= region.limit and all(
            file.sections[index].file_offset != prop.file_offset for index in returning
        )
        # Linkers write them in address order; of notes after the program headers, properties are the first.
        later = (i for i in notes if segments[i].file_offset > prop.file_offset) if stayed else iter(notes)
        segments.insert(next(later, notes[-1] + 1), prop._replace(type=PT_NOTE))
    return segments


def _old_places(file: LinkedFile, region: HeadRegion, returning: tuple[int, ...], table_end: int) -> dict[int, int]:
    """Return new file offsets of returning and movable sections after the program headers; empty if they do not fit."""
    if not returning:
        return {}
    places: dict[int, int] = {}
    position = table_end
    for index in _in_original_order(file, {*returning, *region.movable}):
        section = file.sections[index]
        vaddr = region.vaddr_of(position)
        position += round_up(vaddr, section.alignment) - vaddr
        places[index] = position
        position += section.size
    return places if position <= region.limit else {}


def _in_original_order(file: LinkedFile, indices: set[int]) -> list[int]:
    """Return sections in their order before the move, which is that of their names in the name table.

    Sections of one PT_NOTE stay together. A name that is the suffix of another, as `.hash` of `.gnu.hash`, is sorted
    immediately before that one.
    """
    followers = FollowingSegments(file)
    first = {
        segment: min((file.sections[index].name_offset for index in covered), default=0)
        for segment, covered in followers.sections.items()
    }
    table = file.section_bytes(file.names_index)
    starts: dict[int, int] = {}

    def key(index: int) -> tuple[int, bool, int]:
        section = file.sections[index]
        offset = min([section.name_offset, *(first[segment] for segment in followers.segments.get(index, ()))])
        if offset not in starts:
            starts[offset] = table.rfind(b"\0", 0, offset) + 1
        return (starts[offset], starts[offset] == offset, section.file_offset)

    return sorted(indices, key=key)


def _followed(
    file: LinkedFile, segments: list[ProgramHeader], places: dict[int, int], vaddrs: dict[int, int]
) -> list[ProgramHeader]:
    """Return the program headers with PT_INTERP, PT_NOTE and PT_GNU_PROPERTY at the new places of their sections.

    A PT_NOTE is extended over notes without a segment that adjoin it.
    """
    if not places:
        return segments
    result = []
    followers = FollowingSegments(file, segments)
    orphans: dict[int, list[int]] = {}
    alignments = {segment.alignment for segment in segments if segment.type == PT_NOTE}
    for index in sorted(places, key=lambda index: places[index]):
        if file.sections[index].type == SHT_NOTE and index not in followers.segments:
            # A note belongs in the PT_NOTE of its alignment, where there is one.
            alignment = file.sections[index].alignment
            for wanted in (alignment,) if alignment in alignments else alignments:
                orphans.setdefault(wanted, []).append(index)
    for segment in segments:
        covered = sorted((i for i in followers.sections.get(segment, ()) if i in places), key=lambda i: places[i])
        if not covered:
            result.append(segment)
            continue
        if segment.type == PT_NOTE:
            covered = _adjacent(file, places, covered, orphans.get(segment.alignment, []))
        start, vaddr = places[covered[0]], vaddrs[covered[0]]
        size = places[covered[-1]] + file.sections[covered[-1]].size - start
        paddr = vaddr if segment.paddr else 0
        result.append(segment._replace(file_offset=start, vaddr=vaddr, paddr=paddr, file_size=size, memory_size=size))
    return result


def _adjacent(file: LinkedFile, places: dict[int, int], covered: list[int], notes: list[int]) -> list[int]:
    """Return the first and last of `covered` together with the notes of no segment that adjoin them.

    Only padding is in between. `notes` are in file order.
    """
    first, last = covered[0], covered[-1]
    at = bisect_left(notes, places[last], key=lambda index: places[index])
    for index in notes[at:]:
        if places[index] != _end_padded(file, places, last, index):
            break
        last = index
    at = bisect_left(notes, places[first], key=lambda index: places[index])
    for index in reversed(notes[:at]):
        if places[first] != _end_padded(file, places, index, first):
            break
        first = index
    return [first, last]


def _end_padded(file: LinkedFile, places: dict[int, int], first: int, second: int) -> int:
    """Return the file offset of the end of section `first`, aligned for section `second`."""
    return round_up(places[first] + file.sections[first].size, file.sections[second].alignment)


def _shrunk(
    file: LinkedFile, segments: list[ProgramHeader], target: _Target, returning: set[int]
) -> list[ProgramHeader]:
    """Return the program headers with PT_LOAD entries shrunk to what is left in them, and with PT_PHDR's new size."""
    table_size = PROGRAM_HEADER_SIZE * len(segments)
    leaving = returning | ({target.section_index} if target.section_index is not None else set())
    result = []
    for segment in segments:
        if segment.type == PT_PHDR:
            result.append(segment._replace(file_size=table_size, memory_size=table_size))
            continue
        if segment.type == PT_LOAD and segment.file_size == segment.memory_size:
            everything = _contents(file, segment, ())
            left = _contents(file, segment, leaving)
            if left and left != everything:
                end = max(file.sections[index].file_span.end for index in left)
                old_end = max(file.sections[index].file_span.end for index in everything)
                if end < old_end == segment.file_span.end:
                    size = end - segment.file_offset
                    segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
        result.append(segment)
    return result


def _head(
    file: LinkedFile,
    region: HeadRegion,
    segments: list[ProgramHeader],
    places: dict[int, int],
    contents: dict[int, bytes],
) -> list[Splice]:
    start = file.header.program_headers_offset
    table = b"".join(segment.pack(file.order) for segment in segments)
    if not places:
        return [overwrite(start, table.ljust(file.table_end - start, b"\0"))]
    head = bytearray(region.limit - start)
    head[: len(table)] = table
    for index, place in places.items():
        content = contents[index] if index in contents else file.section_bytes(index)
        head[place - start : place - start + len(content)] = content
    return [overwrite(start, bytes(head))]


def _cleared(
    file: LinkedFile, target: _Target, region: HeadRegion, returning: tuple[int, ...], *, own: bool
) -> list[Splice]:
    """Return the splices that overwrite with zeros what is removed from segments that stay."""
    load = target.load
    splices = []
    if not own:
        splices.append(overwrite(target.start, bytes(target.end - target.start)))
    for index in returning:
        section = file.sections[index]
        inside_own = own and load is not None and section.file_offset >= load.file_offset
        if not inside_own and section.file_offset >= region.limit:
            splices.append(overwrite(section.file_offset, bytes(section.size)))
    return splices


def _cut(file: LinkedFile, target: _Target) -> Splice | None:
    """Return the cut of the segment's bytes, a multiple of the alignment of what follows; None without any."""
    load = target.load
    if load is None:
        return None
    load_end = load.file_span.end
    used = [segment.file_span for segment in file.segments if segment.file_size]
    used += [Span(section.start, section.end) for section in file.stored]
    used.append(Span(file.header.program_headers_offset, file.table_end))
    if file.sections:
        used.append(file.section_table)
    before = max(span.end for span in used if span.end <= load.file_offset)
    following = min((span.start for span in used if span.start >= load_end), default=file.described_end())
    alignment = file.alignment_from(load_end)
    size = min(round_up(load_end - before, alignment), (following - before) // alignment * alignment)
    if following == file.described_end():
        size = following - before
    return Splice(before, size, b"") if size > 0 else None
