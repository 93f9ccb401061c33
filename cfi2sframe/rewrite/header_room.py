# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers in place: what follows the table, and where that can move.

The table must stay near the start of the file: kernels before 5.18 compute AT_PHDR from the first PT_LOAD, and GNU
strip and objcopy move a table that is elsewhere back after the ELF header, over whatever is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.rewrite.following_segments import FOLLOWING_TYPES, FollowingSegments
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.movable import BUILD_ID_NAME, NAMED_NOTES, movable_sections

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.rewrite.gate import LinkedFile

#: A core dump contains this many bytes of each mapped ELF file; the build-id has to be among them.
FIRST_PAGE_SIZE: Final = 4096
#: A section that moves leaves a hole. None is larger than this (bytes), or than the file's size divided by the share.
_LARGEST_MOVED_SIZE: Final = 1 << 18
_LARGEST_MOVED_SHARE: Final = 64
#: How many placements in which the build-id leaves the first page are tried before the first is accepted.
_MORE_ATTEMPTS: Final = 64
#: The shortest run of X (bytes) that patchelf leaves: the size of the smallest section that it moves.
_SHORTEST_X_RUN: Final = 8


class MovableGroup(NamedTuple):
    """Sections that move together, because one segment covers them, with the file offset, size and alignment of all.

    `deltas` are the distances of the sections from the group's start in bytes.
    """

    indices: tuple[int, ...]
    deltas: tuple[int, ...]
    file_offset: int
    size: int
    alignment: int
    has_build_id: bool


class HeadRegion(NamedTuple):
    """The file offsets `[start, limit)` from the end of the program header table to the first bytes that cannot move.

    `load` is the PT_LOAD that holds the table, `movable` the indices of the sections in between, in file order.
    """

    start: int
    limit: int
    load: ProgramHeader | None
    movable: tuple[int, ...]

    def vaddr_of(self, file_offset: int) -> int:
        """Return the address of a byte of the segment that holds the table."""
        return file_offset + (self.load.vaddr - self.load.file_offset if self.load else 0)


class Repacking(NamedTuple):
    """Where the movable sections go when the table grows.

    `placed` maps sections to file offsets within the first segment; the groups `displaced` leave it. `load_end` is the
    new end (file offset) of the first segment when the build-id moves into the slack after it, else None.
    """

    placed: dict[int, int]
    displaced: tuple[MovableGroup, ...]
    load_end: int | None
    warnings: tuple[str, ...]


def head_region(file: LinkedFile) -> HeadRegion:
    """Return the region after the program header table."""
    start = file.table_end
    load = next(
        (
            load
            for load in file.loads
            if load.file_offset <= file.header.program_headers_offset and start <= load.file_span.end
        ),
        None,
    )
    if load is None or not file.sections:
        return HeadRegion(start, start, load, ())
    load_end = load.file_span.end
    movable = movable_sections(file, start, load_end)
    position, limit, found = vacated_end(file), load_end, []
    for file_offset, index in _contents_from(file, start):
        between = bytes(file.data[position : min(file_offset, load_end)])
        if not _is_unused(between):
            limit = position + _size_before_old_headers(file, position, between)
            break
        if index not in movable:
            limit = min(file_offset, load_end)
            break
        found.append(index)
        position = file_offset + file.sections[index].size
    return _without_half_notes(file, HeadRegion(start, limit, load, tuple(found)))


def _is_unused(content: bytes) -> bool:
    """Whether bytes that no header describes are zeros, or runs of X, which patchelf writes where a section was."""
    return not content.translate(None, b"\0X") and all(
        len(run) >= _SHORTEST_X_RUN for run in content.split(b"\0") if run
    )


def _size_before_old_headers(file: LinkedFile, start: int, content: bytes) -> int:
    """Return the size of the zeros before another file header on a page of its own, which `front_page` leaves; else 0.

    `content` are the bytes from file offset `start` on.
    """
    size = len(content) - len(content.lstrip(b"\0"))
    is_page = (start + size) % FIRST_PAGE_SIZE == 0
    return size if is_page and content.startswith(file.header.ident, size) else 0


def _contents_from(file: LinkedFile, start: int) -> list[tuple[int, int]]:
    contents = [(section.start, section.number) for section in file.stored if section.start >= start]
    table = file.header.section_headers_offset
    if table >= vacated_end(file):
        contents.append((table, -1))
    return sorted(contents)


def vacated_end(file: LinkedFile) -> int:
    """Return the file offset up to which the bytes after the program headers are free, or become free.

    Go's linker puts the section headers there. Like all section headers before loaded bytes, these move to the end of
    the file.
    """
    table = file.section_table
    if not file.sections or table.end > file.loaded_end or table.start < file.table_end:
        return file.table_end
    return file.table_end if any(file.data[file.table_end : table.start]) else table.end


def _without_half_notes(file: LinkedFile, region: HeadRegion) -> HeadRegion:
    """Return the region, ended before the first of the `FOLLOWING_TYPES` segments that is only partly in it."""
    limit = region.limit
    for segment in file.segments:
        end = segment.file_span.end
        if segment.type in FOLLOWING_TYPES and region.start <= segment.file_offset < limit < end:
            limit = segment.file_offset
    kept = tuple(index for index in region.movable if file.sections[index].file_offset < limit)
    return region._replace(limit=limit, movable=kept)


def groups_of(file: LinkedFile, movable: tuple[int, ...], *, split_notes: bool) -> tuple[MovableGroup, ...]:
    """Return the movable sections in file order, in one group where one segment covers several.

    With `split_notes` each is a group, except for notes that are found by their PT_NOTE only; a PT_NOTE then keeps only
    its build-id or, without one, its first section.
    """
    clusters: list[list[int]] = []
    following = FollowingSegments(file)
    for index in movable:
        may_part = split_notes and clusters and _may_part(file, clusters[-1][-1], index)
        if clusters and not may_part and _joined(file, following, clusters[-1][-1], index):
            clusters[-1].append(index)
        else:
            clusters.append([index])
    return tuple(_group(file, following, tuple(cluster)) for cluster in clusters)


def _joined(file: LinkedFile, following: FollowingSegments, first: int, second: int) -> bool:
    end = file.sections[second].file_span.end
    return following.holds_both(file.sections[first].file_offset, end)


def _may_part(file: LinkedFile, first: int, second: int) -> bool:
    """Whether two neighbours are both found without the PT_NOTE that they share."""
    return file.names[first] in NAMED_NOTES and file.names[second] in NAMED_NOTES


def _group(file: LinkedFile, following: FollowingSegments, indices: tuple[int, ...]) -> MovableGroup:
    first, last = file.sections[indices[0]], file.sections[indices[-1]]
    alignments = [file.sections[index].alignment for index in indices]
    alignments += [segment.alignment for index in indices for segment in following.segments.get(index, ())]
    return MovableGroup(
        indices,
        tuple(file.sections[index].file_offset - first.file_offset for index in indices),
        first.file_offset,
        last.file_span.end - first.file_offset,
        max(alignments),
        any(file.names[index] == BUILD_ID_NAME for index in indices),
    )


def repack(file: LinkedFile, region: HeadRegion, table_end: int, slack_end: int) -> Repacking | None:
    """Return new places that make room for a table up to file offset `table_end`; None when there are none.

    The build-id may move into the slack after the first segment, up to file offset `slack_end`.
    """
    if region.load is None:
        return None
    fallback, more = None, _MORE_ATTEMPTS
    largest = max(_LARGEST_MOVED_SIZE, len(file.data) // _LARGEST_MOVED_SHARE)
    for split_notes in (False, True):
        groups = groups_of(file, region.movable, split_notes=split_notes)
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


def _place(region: HeadRegion, groups: tuple[MovableGroup, ...], room: range, slack_end: int) -> Repacking:
    placed: dict[int, int] = {}
    displaced: list[MovableGroup] = []
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
