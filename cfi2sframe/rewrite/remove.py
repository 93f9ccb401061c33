# SPDX-License-Identifier: Apache-2.0
"""Take a `.sframe` section out of a linked file: the reverse of `draft` and `assemble`, as far as the file tells.

Moved sections are known by their place: behind `.sframe` in its segment. A PT_NOTE for `.note.gnu.property`
returns when PT_GNU_PROPERTY is there without it, as every linker writes both.
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
from cfi2sframe.elf.records import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, ProgramHeader, SectionHeader
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.cover import Cover
from cfi2sframe.rewrite.edits import Splice, ordered, overwrite
from cfi2sframe.rewrite.gate import Layout, described_end, round_up
from cfi2sframe.rewrite.header_room import FIRST_PAGE_SIZE, HeadRegion, groups_of, head_region
from cfi2sframe.rewrite.insert import behind_alignment
from cfi2sframe.rewrite.movable import movable_sections, nobody_misses
from cfi2sframe.rewrite.reread.view import is_zero
from cfi2sframe.rewrite.section_indices import changed_contents, section_bytes
from cfi2sframe.rewrite.section_table import without_section_header
from cfi2sframe.rewrite.table_at_end import segments_before, table_is_in

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Target(NamedTuple):
    """What goes: the section's index (or None), its file range, and the PT_LOAD it is in (or None)."""

    section_index: int | None
    start: int
    end: int
    load: ProgramHeader | None


def removal_splices(layout: Layout) -> tuple[Splice, ...]:
    """Return the splices that take `.sframe` and PT_GNU_SFRAME out of the file.

    Raises `EmbedError` when there is neither.
    """
    target = _find(layout)
    if table_is_in(layout, target.load) and _is_own_segment(layout, target, ()):
        return _with_table_in_front(layout, target)
    region = head_region(layout)
    home = _way_home(layout, region, target)
    own = _is_own_segment(layout, target, home)
    segments = _segments_without(layout, target, own=own)
    table_end = layout.header.program_headers_offset + PROGRAM_HEADER_SIZE * len(segments)
    places = _places_at_home(layout, region, home, table_end)
    if home and not places:
        home, own = (), own and not home
        segments = _segments_without(layout, target, own=own)
    vaddrs = {index: region.vaddr_of(offset) for index, offset in places.items()}
    segments = _followed(layout, segments, places, vaddrs)
    segments = _shrunk(layout, segments, target, set(home))
    numbering = _new_numbering(layout, target, places)
    contents = changed_contents(layout, numbering, vaddrs)
    splices = _head(layout, region, segments, places, contents)
    splices += [
        overwrite(layout.sections[index].file_offset, content)
        for index, content in contents.items()
        if index not in places
    ]
    splices += _cleared(layout, target, region, home, own=own)
    cuts = [cut] if own and (cut := _cut(layout, target)) else []
    header = layout.header._replace(program_header_count=len(segments))
    if layout.sections:
        moved = {index: (vaddrs[index], places[index]) for index in places}
        more, header = without_section_header(layout, header, target.section_index, moved, numbering, cuts, splices)
        splices = more
    splices += [Splice(cut.file_offset, cut.removed_size, b"") for cut in cuts]
    splices.append(overwrite(0, header.pack()))
    return ordered(splices)


def _with_table_in_front(layout: Layout, target: _Target) -> tuple[Splice, ...]:
    """Return the splices that take out the section's segment with the program headers, which go to their old place."""
    kept = [s for s in layout.segments if s.type != PT_GNU_SFRAME and s is not target.load]
    segments = segments_before(layout, kept)
    numbering = _new_numbering(layout, target, {})
    splices = [overwrite(FILE_HEADER_SIZE, b"".join(segment.pack(layout.order) for segment in segments))]
    contents = changed_contents(layout, numbering, {})
    splices += [overwrite(layout.sections[index].file_offset, content) for index, content in contents.items()]
    cuts = [cut] if (cut := _cut(layout, target)) else []
    header = layout.header._replace(program_header_count=len(segments), program_headers_offset=FILE_HEADER_SIZE)
    if layout.sections:
        splices, header = without_section_header(layout, header, target.section_index, {}, numbering, cuts, splices)
    return ordered(
        [*splices, *(Splice(cut.file_offset, cut.removed_size, b"") for cut in cuts), overwrite(0, header.pack())]
    )


def _find(layout: Layout) -> _Target:
    index, segment = layout.sframe_index(), layout.sframe_segment()
    if index is not None:
        section: SectionHeader | ProgramHeader = layout.sections[index]
        size = layout.sections[index].size
    elif segment is not None:
        section, size = segment, segment.file_size
    else:
        raise EmbedError("the file has no .sframe section")
    start = section.file_offset
    load = next(
        (
            load
            for load in layout.loads
            if load.file_offset <= start
            and start + size <= load.file_offset + load.file_size
            and section.vaddr - load.vaddr == start - load.file_offset
        ),
        None,
    )
    return _Target(index, start, start + size, load)


def _contents(layout: Layout, load: ProgramHeader, without: Iterable[int]) -> list[int]:
    left_out = set(without)
    return [
        index
        for index in layout.indices_within(load.file_offset, load.file_offset + load.file_size)
        if index not in left_out and layout.sections[index].flags & SHF_ALLOC
    ]


def _way_home(layout: Layout, region: HeadRegion, target: _Target) -> tuple[int, ...]:
    """Return the sections that gave way to the program headers.

    They lie behind `.sframe` in its segment; a build-id note may lie at the end of the first page.
    """
    load = target.load
    if load is None or region.load is None:
        return ()
    behind = [i for i in _contents(layout, load, ()) if layout.sections[i].file_offset >= target.end]
    behind_end = load.file_offset + load.file_size
    if not set(behind) <= movable_sections(layout, target.end, behind_end):
        behind = []
    first_end = region.load.file_offset + region.load.file_size
    noted: list[int] = []
    for group in groups_of(layout, _late_notes(layout, region, behind), split_notes=False):
        if group.has_build_id and group.file_offset + group.size <= min(first_end, FIRST_PAGE_SIZE):
            noted += group.indices
    return (*noted, *behind)


def _late_notes(layout: Layout, region: HeadRegion, without: list[int]) -> tuple[int, ...]:
    """Return the movable notes of the first segment that lie behind sections which stay, in file order."""
    if region.load is None:
        return ()
    end = region.load.file_offset + region.load.file_size
    movable = movable_sections(layout, region.limit, end)
    found = [
        index
        for index in _contents(layout, region.load, [*without, *region.movable])
        if index in movable and layout.sections[index].type == SHT_NOTE
    ]
    return tuple(sorted(found, key=lambda index: layout.sections[index].file_offset))


def _is_own_segment(layout: Layout, target: _Target, home: tuple[int, ...]) -> bool:
    """Say whether the PT_LOAD holds nothing but the section and sections that go home."""
    load = target.load
    if load is None or load.flags & (PF_R | PF_W | PF_X) != PF_R or load is not layout.loads[-1]:
        return False
    if load.file_offset + load.file_size != layout.loaded_end or load.file_size != load.memory_size:
        return False
    if not layout.sections:
        return target.start - load.file_offset < 16
    left = [] if target.section_index is None else [target.section_index]
    return not _contents(layout, load, [*left, *home]) and _is_rest_empty(layout, target, load, home)


def _is_rest_empty(layout: Layout, target: _Target, load: ProgramHeader, home: tuple[int, ...]) -> bool:
    """Say whether a PT_LOAD has nothing but zeros beside the section, sections that go home, and program headers."""
    known = [(layout.sections[i].file_offset, layout.sections[i].file_offset + layout.sections[i].size) for i in home]
    known += [(target.start, target.end), (layout.header.program_headers_offset, layout.table_end)]
    position, end = load.file_offset, load.file_offset + load.file_size
    for start, stop in [*sorted(known), (end, end)]:
        if not is_zero(layout.data, (position, max(position, min(start, end)))):
            return False
        position = max(position, stop)
    return True


def _segments_without(layout: Layout, target: _Target, *, own: bool) -> list[ProgramHeader]:
    segments = [
        segment for segment in layout.segments if segment.type != PT_GNU_SFRAME and not (own and segment is target.load)
    ]
    prop = next((segment for segment in segments if segment.type == PT_GNU_PROPERTY), None)
    notes = [index for index, segment in enumerate(segments) if segment.type == PT_NOTE]
    known = any(
        (segments[index].file_offset, segments[index].file_size) == (prop.file_offset, prop.file_size)
        for index in notes
        if prop
    )
    has_room = len(segments) < len(layout.segments)
    if prop is not None and notes and not known and has_room and nobody_misses(layout, prop):
        segments.insert(notes[0], prop._replace(type=PT_NOTE))
    return segments


def _places_at_home(layout: Layout, region: HeadRegion, home: tuple[int, ...], table_end: int) -> dict[int, int]:
    """Return the file offsets of the sections behind the table, one after the other; empty when they do not fit."""
    if not home:
        return {}
    places: dict[int, int] = {}
    position = table_end
    for index in _in_original_order(layout, {*home, *region.movable}):
        section = layout.sections[index]
        vaddr = region.vaddr_of(position)
        position += round_up(vaddr, section.alignment) - vaddr
        places[index] = position
        position += section.size
    return places if position <= region.limit else {}


def _in_original_order(layout: Layout, indices: set[int]) -> list[int]:
    """Return sections in the order before the move: linkers write section names in the order of the sections.

    Sections of one PT_NOTE stay together. A name that is the end of another, as `.hash` of `.gnu.hash`,
    takes that one's place, before it.
    """
    cover = Cover(layout)
    first = {
        segment: min((layout.sections[index].name_offset for index in covered), default=0)
        for segment, covered in cover.sections.items()
    }
    table = section_bytes(layout, layout.names_index)
    starts: dict[int, int] = {}

    def key(index: int) -> tuple[int, bool, int]:
        section = layout.sections[index]
        offset = min([section.name_offset, *(first[segment] for segment in cover.segments.get(index, ()))])
        if offset not in starts:
            starts[offset] = table.rfind(b"\0", 0, offset) + 1
        return (starts[offset], starts[offset] == offset, section.file_offset)

    return sorted(indices, key=key)


def _new_numbering(layout: Layout, target: _Target, places: dict[int, int]) -> list[int]:
    """Return the new index of each section, -1 for the one that goes: behind the null section come those at home."""
    home = sorted(places, key=lambda index: places[index])
    order = [i for i in range(len(layout.sections)) if i not in places and i != target.section_index]
    order[1:1] = home
    numbering = [-1] * len(layout.sections)
    for new, old in enumerate(order):
        numbering[old] = new
    return numbering


def _followed(
    layout: Layout, segments: list[ProgramHeader], places: dict[int, int], vaddrs: dict[int, int]
) -> list[ProgramHeader]:
    """Let PT_INTERP, PT_NOTE and PT_GNU_PROPERTY follow; a note next to a PT_NOTE's last one joins it again."""
    if not places:
        return segments
    result = []
    cover = Cover(layout, segments)
    orphans: dict[int, list[int]] = {}
    alignments = {segment.alignment for segment in segments if segment.type == PT_NOTE}
    for index in sorted(places, key=lambda index: places[index]):
        if layout.sections[index].type == SHT_NOTE and index not in cover.segments:
            # A note belongs into the PT_NOTE of its alignment, where there is one.
            alignment = layout.sections[index].alignment
            for wanted in (alignment,) if alignment in alignments else alignments:
                orphans.setdefault(wanted, []).append(index)
    for segment in segments:
        covered = sorted((i for i in cover.sections.get(segment, ()) if i in places), key=lambda i: places[i])
        if not covered:
            result.append(segment)
            continue
        if segment.type == PT_NOTE:
            covered = _adjacent(layout, places, covered, orphans.get(segment.alignment, []))
        start, vaddr = places[covered[0]], vaddrs[covered[0]]
        size = places[covered[-1]] + layout.sections[covered[-1]].size - start
        paddr = vaddr if segment.paddr else 0
        result.append(segment._replace(file_offset=start, vaddr=vaddr, paddr=paddr, file_size=size, memory_size=size))
    return result


def _adjacent(layout: Layout, places: dict[int, int], covered: list[int], notes: list[int]) -> list[int]:
    """Return the first and last of `covered` and the notes of no segment next to them, with only padding between.

    `notes` are in file order.
    """
    first, last = covered[0], covered[-1]
    at = bisect_left(notes, places[last], key=lambda index: places[index])
    for index in notes[at:]:
        if places[index] != _end_padded(layout, places, last, index):
            break
        last = index
    at = bisect_left(notes, places[first], key=lambda index: places[index])
    for index in reversed(notes[:at]):
        if places[first] != _end_padded(layout, places, index, first):
            break
        first = index
    return [first, last]


def _end_padded(layout: Layout, places: dict[int, int], first: int, second: int) -> int:
    """Return the file offset behind section `first`, aligned for section `second`."""
    return round_up(places[first] + layout.sections[first].size, layout.sections[second].alignment)


def _shrunk(layout: Layout, segments: list[ProgramHeader], target: _Target, home: set[int]) -> list[ProgramHeader]:
    """End the extended PT_LOAD entries behind what is left in them, and give PT_PHDR its new size."""
    table_size = PROGRAM_HEADER_SIZE * len(segments)
    leaving = home | ({target.section_index} if target.section_index is not None else set())
    result = []
    for segment in segments:
        if segment.type == PT_PHDR:
            result.append(segment._replace(file_size=table_size, memory_size=table_size))
            continue
        if segment.type == PT_LOAD and segment.file_size == segment.memory_size:
            everything = _contents(layout, segment, ())
            left = _contents(layout, segment, leaving)
            if left and left != everything:
                end = max(layout.sections[index].file_offset + layout.sections[index].size for index in left)
                old_end = max(layout.sections[index].file_offset + layout.sections[index].size for index in everything)
                if end < old_end == segment.file_offset + segment.file_size:
                    size = end - segment.file_offset
                    segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
        result.append(segment)
    return result


def _head(
    layout: Layout,
    region: HeadRegion,
    segments: list[ProgramHeader],
    places: dict[int, int],
    contents: dict[int, bytes],
) -> list[Splice]:
    start = layout.header.program_headers_offset
    table = b"".join(segment.pack(layout.order) for segment in segments)
    if not places:
        return [overwrite(start, table.ljust(layout.table_end - start, b"\0"))]
    head = bytearray(region.limit - start)
    head[: len(table)] = table
    for index, place in places.items():
        content = contents[index] if index in contents else section_bytes(layout, index)
        head[place - start : place - start + len(content)] = content
    return [overwrite(start, bytes(head))]


def _cleared(layout: Layout, target: _Target, region: HeadRegion, home: tuple[int, ...], *, own: bool) -> list[Splice]:
    """Zero what is left behind in segments that stay."""
    load = target.load
    splices = []
    if not own:
        splices.append(overwrite(target.start, bytes(target.end - target.start)))
    for index in home:
        section = layout.sections[index]
        inside_own = own and load is not None and section.file_offset >= load.file_offset
        if not inside_own and section.file_offset >= region.limit:
            splices.append(overwrite(section.file_offset, bytes(section.size)))
    return splices


def _cut(layout: Layout, target: _Target) -> Splice | None:
    """Return the removal of the segment's bytes, in steps of the alignment of what follows; None without any."""
    load = target.load
    if load is None:
        return None
    load_end = load.file_offset + load.file_size
    edges = [(segment.file_offset, segment.file_size) for segment in layout.segments if segment.file_size]
    edges += [
        (section.file_offset, section.size)
        for index, section in enumerate(layout.sections)
        if layout.has_content(index)
    ]
    edges.append((layout.header.program_headers_offset, PROGRAM_HEADER_SIZE * len(layout.segments)))
    if layout.sections:
        edges.append((layout.header.section_headers_offset, 1))
    before = max(start + size for start, size in edges if start + size <= load.file_offset)
    behind = min((start for start, _ in edges if start >= load_end), default=described_end(layout))
    alignment = behind_alignment(layout, load_end)
    size = min(round_up(load_end - before, alignment), (behind - before) // alignment * alignment)
    if behind == described_end(layout):
        size = behind - before
    return Splice(before, size, b"") if size > 0 else None
