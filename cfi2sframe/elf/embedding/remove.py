# SPDX-License-Identifier: Apache-2.0
"""Take a `.sframe` section out of a linked file: the reverse of `draft` and `assemble`, as far as the file tells.

Moved sections are known by the order of the section headers, which never changes: a section that lies behind one
with a higher index was moved. A PT_NOTE for `.note.gnu.property` returns when PT_GNU_PROPERTY is there without it,
as every linker writes both.
"""

from __future__ import annotations

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
from cfi2sframe.elf.embedding.assemble import behind_alignment, follow
from cfi2sframe.elf.embedding.head import HeadRegion, head_region
from cfi2sframe.elf.embedding.layout import Layout, described_end, round_up
from cfi2sframe.elf.embedding.movable import following_types, movable_sections
from cfi2sframe.elf.embedding.splice import Splice, ordered, overwrite
from cfi2sframe.elf.embedding.untable import without_section_header
from cfi2sframe.elf.records import PROGRAM_HEADER_SIZE, ProgramHeader, SectionHeader
from cfi2sframe.errors import EmbedError

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
    splices = _head(layout, region, segments, places)
    splices += _cleared(layout, target, region, home, own=own)
    splices += follow(layout, vaddrs)
    cuts = [cut] if own and (cut := _cut(layout, target)) else []
    header = layout.header._replace(program_header_count=len(segments))
    if layout.sections:
        moved = {index: (vaddrs[index], places[index]) for index in places}
        more, header = without_section_header(layout, header, target.section_index, moved, cuts, splices)
        splices = more
    splices += [Splice(cut.file_offset, cut.removed_size, b"") for cut in cuts]
    splices.append(overwrite(0, header.pack()))
    return ordered(splices)


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
        for index, section in enumerate(layout.sections)
        if layout.has_content(index)
        and index not in left_out
        and section.flags & SHF_ALLOC
        and load.file_offset <= section.file_offset
        and section.file_offset + section.size <= load.file_offset + load.file_size
    ]


def _way_home(layout: Layout, region: HeadRegion, target: _Target) -> tuple[int, ...]:
    """Return the movable sections that lie behind a section of a higher index."""
    if target.load is None or region.load is None:
        return ()
    candidates = set(_contents(layout, target.load, ())) | set(_contents(layout, region.load, region.movable))
    start = min((layout.sections[index].file_offset for index in candidates), default=0)
    end = max((layout.sections[index].file_offset + layout.sections[index].size for index in candidates), default=0)
    found = []
    for index in sorted(candidates & movable_sections(layout, start, end)):
        section = layout.sections[index]
        if any(
            other.file_offset < section.file_offset and other.flags & SHF_ALLOC and layout.has_content(number)
            for number, other in enumerate(layout.sections)
            if number > index and number != target.section_index
        ):
            found.append(index)
    return tuple(found)


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
    return not _contents(layout, load, [*left, *home])


def _segments_without(layout: Layout, target: _Target, *, own: bool) -> list[ProgramHeader]:
    segments = [
        segment
        for segment in layout.segments
        if segment.type != PT_GNU_SFRAME and not (own and segment is target.load)
    ]
    prop = next((segment for segment in segments if segment.type == PT_GNU_PROPERTY), None)
    notes = [index for index, segment in enumerate(segments) if segment.type == PT_NOTE]
    known = any(
        (segments[index].file_offset, segments[index].file_size) == (prop.file_offset, prop.file_size)
        for index in notes
        if prop
    )
    if prop is not None and notes and not known and len(segments) < len(layout.segments):
        segments.insert(notes[0], prop._replace(type=PT_NOTE))
    return segments


def _places_at_home(
    layout: Layout, region: HeadRegion, home: tuple[int, ...], table_end: int
) -> dict[int, int]:
    """Return the file offsets of the sections behind the table, one after the other; empty when they do not fit."""
    if not home:
        return {}
    places: dict[int, int] = {}
    position = table_end
    for index in sorted({*home, *region.movable}):
        section = layout.sections[index]
        vaddr = region.vaddr_of(position)
        position += round_up(vaddr, section.alignment) - vaddr
        places[index] = position
        position += section.size
    return places if position <= region.limit else {}


def _followed(
    layout: Layout, segments: list[ProgramHeader], places: dict[int, int], vaddrs: dict[int, int]
) -> list[ProgramHeader]:
    """Let PT_INTERP, PT_NOTE and PT_GNU_PROPERTY follow; a note next to a PT_NOTE's last one joins it again."""
    if not places:
        return segments
    result = []
    orphans = [
        index
        for index in places
        if layout.sections[index].type == SHT_NOTE
        and not any(_holds(segment, layout, index) for segment in segments)
    ]
    for segment in segments:
        covered = sorted(index for index in places if _holds(segment, layout, index))
        if not covered:
            result.append(segment)
            continue
        if segment.type == PT_NOTE:
            while covered[-1] + 1 in orphans:
                covered.append(covered[-1] + 1)
        start, vaddr = places[covered[0]], vaddrs[covered[0]]
        size = places[covered[-1]] + layout.sections[covered[-1]].size - start
        paddr = vaddr if segment.paddr else 0
        result.append(segment._replace(file_offset=start, vaddr=vaddr, paddr=paddr, file_size=size, memory_size=size))
    return result


def _holds(segment: ProgramHeader, layout: Layout, index: int) -> bool:
    section = layout.sections[index]
    return (
        segment.type in following_types()
        and segment.file_offset <= section.file_offset
        and section.file_offset + section.size <= segment.file_offset + segment.file_size
    )


def _shrunk(
    layout: Layout, segments: list[ProgramHeader], target: _Target, home: set[int]
) -> list[ProgramHeader]:
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
                old_end = max(
                    layout.sections[index].file_offset + layout.sections[index].size for index in everything
                )
                if end < old_end == segment.file_offset + segment.file_size:
                    size = end - segment.file_offset
                    segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
        result.append(segment)
    return result


def _head(
    layout: Layout, region: HeadRegion, segments: list[ProgramHeader], places: dict[int, int]
) -> list[Splice]:
    start = layout.header.program_headers_offset
    table = b"".join(segment.pack(layout.order) for segment in segments)
    if not places:
        return [overwrite(start, table.ljust(layout.table_end - start, b"\0"))]
    head = bytearray(region.limit - start)
    head[: len(table)] = table
    for index, place in places.items():
        section = layout.sections[index]
        content = layout.data[section.file_offset : section.file_offset + section.size]
        head[place - start : place - start + section.size] = content
    return [overwrite(start, bytes(head))]


def _cleared(
    layout: Layout, target: _Target, region: HeadRegion, home: tuple[int, ...], *, own: bool
) -> list[Splice]:
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
    """Return the removal of the segment's bytes, a multiple of the alignment of what follows; None when there is none."""
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
