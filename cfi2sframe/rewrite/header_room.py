# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers where they are: what lies behind the table, and where it can go instead.

The table must stay near the start of the file: kernels before 5.18 derive AT_PHDR from the first PT_LOAD,
and GNU strip and objcopy put a table that lies elsewhere back behind the ELF header, over whatever is
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.records import SECTION_HEADER_SIZE
from cfi2sframe.rewrite.cover import FOLLOWING_TYPES, Cover
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.movable import BUILD_ID_NAME, movable_sections

if TYPE_CHECKING:
    from cfi2sframe.elf.records import ProgramHeader
    from cfi2sframe.rewrite.gate import Layout

#: A core dump keeps this much of a mapped ELF file; the build-id has to be within.
FIRST_PAGE_SIZE: Final = 4096
#: Larger sections are not worth leaving a hole of their size in the file, unless that is this part of the file.
_LARGEST_MOVED_SIZE: Final = 1 << 18
_LARGEST_MOVED_SHARE: Final = 64
#: So many more groups may leave the way after it is clear, for a build-id that stays in the first page.
_MORE_ATTEMPTS: Final = 64
#: The smallest section that patchelf moves and overwrites: an entry of a table, a short name.
_SHORTEST_X_RUN: Final = 8


class Group(NamedTuple):
    """Sections that move together, since one segment covers them: first byte, size, alignment.

    `deltas` are the distances of the sections from the group's first byte.
    """

    indices: tuple[int, ...]
    deltas: tuple[int, ...]
    file_offset: int
    size: int
    alignment: int
    has_build_id: bool


class HeadRegion(NamedTuple):
    """The bytes from the end of the program header table to the first thing that cannot move."""

    start: int
    limit: int
    load: ProgramHeader | None
    movable: tuple[int, ...]

    def vaddr_of(self, file_offset: int) -> int:
        """Return the address of a byte of the segment that holds the table."""
        return file_offset + (self.load.vaddr - self.load.file_offset if self.load else 0)


class Repacking(NamedTuple):
    """Where the movable sections go when the table grows.

    `placed` maps sections to file offsets within the first segment, `displaced` leaves it for the new place.
    """

    placed: dict[int, int]
    displaced: tuple[Group, ...]
    #: New end (file offset) of the first segment, when the build-id went into the slack behind it.
    load_end: int | None
    warnings: tuple[str, ...]


def head_region(layout: Layout) -> HeadRegion:
    """Return the region behind the program header table of `layout`."""
    start = layout.table_end
    load = next(
        (
            load
            for load in layout.loads
            if load.file_offset <= layout.header.program_headers_offset and start <= load.file_offset + load.file_size
        ),
        None,
    )
    if load is None or not layout.sections:
        return HeadRegion(start, start, load, ())
    load_end = load.file_offset + load.file_size
    movable = movable_sections(layout, start, load_end)
    position, limit, found = vacated_end(layout), load_end, []
    for file_offset, index in _contents_behind(layout, start):
        if not _is_unused(bytes(layout.data[position : min(file_offset, load_end)])):
            limit = position
            break
        if index not in movable:
            limit = min(file_offset, load_end)
            break
        found.append(index)
        position = file_offset + layout.sections[index].size
    return _without_half_notes(layout, HeadRegion(start, limit, load, tuple(found)))


def _is_unused(content: bytes) -> bool:
    """Say whether bytes that no header describes are zeros or, as patchelf leaves where a section was, runs of X."""
    return not content.translate(None, b"\0X") and all(
        len(run) >= _SHORTEST_X_RUN for run in content.split(b"\0") if run
    )


def _contents_behind(layout: Layout, start: int) -> list[tuple[int, int]]:
    contents = [
        (section.file_offset, index)
        for index, section in enumerate(layout.sections)
        if layout.has_content(index) and section.file_offset >= start
    ]
    table = layout.header.section_headers_offset
    if table >= vacated_end(layout):
        contents.append((table, -1))
    return sorted(contents)


def vacated_end(layout: Layout) -> int:
    """Return the end of the bytes right behind the program headers that are free in any case.

    Go's linker puts the section headers there. They go to the end of the file, as all that lie before loaded bytes do.
    """
    table = layout.header.section_headers_offset
    end = table + SECTION_HEADER_SIZE * len(layout.sections)
    if not layout.sections or end > layout.loaded_end or not layout.table_end <= table:
        return layout.table_end
    return layout.table_end if any(layout.data[layout.table_end : table]) else end


def _without_half_notes(layout: Layout, region: HeadRegion) -> HeadRegion:
    """End the region before a segment that reaches beyond it."""
    limit = region.limit
    for segment in layout.segments:
        end = segment.file_offset + segment.file_size
        if segment.type in FOLLOWING_TYPES and region.start <= segment.file_offset < limit < end:
            limit = segment.file_offset
    kept = tuple(index for index in region.movable if layout.sections[index].file_offset < limit)
    return region._replace(limit=limit, movable=kept)


def groups_of(layout: Layout, movable: tuple[int, ...], *, split_notes: bool) -> tuple[Group, ...]:
    """Return the movable sections in file order, joined where one segment covers several.

    With `split_notes` each is its own; a PT_NOTE then keeps to its build-id, or else to its first section.
    """
    clusters: list[list[int]] = []
    cover = Cover(layout)
    for index in movable:
        if clusters and not split_notes and _joined(layout, cover, clusters[-1][-1], index):
            clusters[-1].append(index)
        else:
            clusters.append([index])
    return tuple(_group(layout, cover, tuple(cluster)) for cluster in clusters)


def _joined(layout: Layout, cover: Cover, first: int, second: int) -> bool:
    end = layout.sections[second].file_offset + layout.sections[second].size
    return cover.holds_both(layout.sections[first].file_offset, end)


def _group(layout: Layout, cover: Cover, indices: tuple[int, ...]) -> Group:
    first, last = layout.sections[indices[0]], layout.sections[indices[-1]]
    alignments = [layout.sections[index].alignment for index in indices]
    alignments += [segment.alignment for index in indices for segment in cover.segments.get(index, ())]
    return Group(
        indices,
        tuple(layout.sections[index].file_offset - first.file_offset for index in indices),
        first.file_offset,
        last.file_offset + last.size - first.file_offset,
        max(alignments),
        any(layout.names[index] == BUILD_ID_NAME for index in indices),
    )


def repack(layout: Layout, region: HeadRegion, table_end: int, slack_end: int) -> Repacking | None:
    """Make room for a table that ends at `table_end`; None when that cannot be.

    The slack behind the first segment, up to file offset `slack_end`, may take the build-id.
    """
    if region.load is None:
        return None
    fallback, more = None, _MORE_ATTEMPTS
    largest = max(_LARGEST_MOVED_SIZE, len(layout.data) // _LARGEST_MOVED_SHARE)
    for split_notes in (False, True):
        groups = groups_of(layout, region.movable, split_notes=split_notes)
        for count in range(len(groups) + 1):
            room_end = groups[count].file_offset if count < len(groups) else region.limit
            if room_end < table_end:
                continue
            result = _place(region, groups[:count], range(table_end, room_end), slack_end)
            if any(group.size > largest for group in result.displaced):
                break
            if not any(group.has_build_id for group in result.displaced):
                return result
            fallback = fallback or result
            more -= 1
            if not more:
                break
    if fallback is None:
        return None
    warning = "the build-id note leaves the first page of the file: core dumps no longer name the build-id"
    return fallback._replace(warnings=(warning,))


def _place(region: HeadRegion, groups: tuple[Group, ...], room: range, slack_end: int) -> Repacking:
    placed: dict[int, int] = {}
    displaced: list[Group] = []
    position, load_end = room.start, None
    for group in sorted(groups, key=lambda group: (not group.has_build_id, group.size)):
        start = _aligned(region, position, group.alignment)
        if start + group.size <= room.stop:
            position = start + group.size
        elif group.has_build_id and region.load is not None:
            start = _aligned(region, region.load.file_offset + region.load.file_size, group.alignment)
            load_end = start + group.size
            if load_end > slack_end:
                load_end = None
                displaced.append(group)
                continue
        else:
            displaced.append(group)
            continue
        for index, delta in zip(group.indices, group.deltas, strict=True):
            placed[index] = start + delta
    displaced.sort(key=lambda group: group.file_offset)
    return Repacking(placed, tuple(displaced), load_end, ())


def _aligned(region: HeadRegion, file_offset: int, alignment: int) -> int:
    vaddr = region.vaddr_of(file_offset)
    return file_offset + round_up(vaddr, alignment) - vaddr
