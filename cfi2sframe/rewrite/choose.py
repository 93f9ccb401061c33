# SPDX-License-Identifier: Apache-2.0
"""Choose where the section and the program headers go: try all ways to do so, the least intrusive first.

A draft has the new program headers and the new places of sections; `insert` turns it into edits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.elf.constants import (
    ET_EXEC,
    PF_R,
    PT_DYNAMIC,
    PT_GNU_PROPERTY,
    PT_GNU_SFRAME,
    PT_INTERP,
    PT_LOAD,
    PT_NOTE,
    PT_NULL,
    PT_PHDR,
)
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, ProgramHeader
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import EmbedError, InterpreterError
from cfi2sframe.rewrite.following_segments import FollowingSegments
from cfi2sframe.rewrite.header_room import FIRST_PAGE_SIZE, HeadRegion, Repacking, head_region, repack
from cfi2sframe.rewrite.interpreter import reason_against_tail
from cfi2sframe.rewrite.movable import BUILD_ID_NAME, NewPlace, may_be_dropped
from cfi2sframe.rewrite.room import (
    SECTION_ALIGNMENT,
    AddedBlock,
    slack_block,
    slack_end,
    tail_block,
)
from cfi2sframe.rewrite.table_at_end import end_block, warnings_for, with_table_at
from cfi2sframe.rewrite.table_rights import without_execution

if TYPE_CHECKING:
    from cfi2sframe.rewrite.gate import LinkedFile


HeaderSource = Literal[
    "existing-entries",
    "free-entries",
    "repeated-note",
    "table-entry",
    "moved-sections",
    "front-page",
    "table-at-end",
]


class Draft(NamedTuple):
    """One way to insert the section: the new program headers, the block, and the other sections that move.

    `moved` maps the indices of sections to their new places. `sources` tells where the program headers come from.
    `table_file_offset` is the new file offset of the program headers, None when that does not change.
    """

    region: HeadRegion
    block: AddedBlock
    segments: tuple[ProgramHeader, ...]
    moved: dict[int, NewPlace]
    sources: tuple[HeaderSource, ...]
    warnings: tuple[str, ...]
    table_file_offset: int | None = None

    def file_offset_of(self, index: int, file: LinkedFile) -> int:
        """Return the new file offset of a section; that of the old file where the draft does not move it."""
        return self.moved[index].file_offset if index in self.moved else file.sections[index].file_offset


class _KeptHeaders(NamedTuple):
    """The program headers that are kept, and how the others became available."""

    kept: tuple[ProgramHeader, ...]
    sources: tuple[HeaderSource, ...]


def draft_in_place(file: LinkedFile, section_size: int) -> Draft | None:
    """Return the first draft that fits and leaves the program headers where they are, the least intrusive first.

    A section in slack needs one program header, in a new segment two. These are tried in this order: unused entries
    (PT_NULL, or a gap after the table); the entry of the PT_NOTE that repeats PT_GNU_PROPERTY; a table that grows,
    where small sections can move; the PT_PHDR of a static executable.
    """
    region = head_region(file)
    unchanged = _KeptHeaders(tuple(s for s in file.segments if s.type != PT_NULL), ())
    recycled = _without_repeated_note(file, unchanged)
    spare = _without_table_entry(file, recycled or unchanged)
    tails = (False,) if reason_against_tail(file) else (False, True)
    attempts = [(headers, False) for headers in (unchanged, recycled)]
    attempts += [(recycled or unchanged, True), (spare, False), (spare, True)]
    for headers, moving in attempts:
        if headers is None:
            continue
        attempt = _with_moving if moving else _without_moving
        for tail in tails:
            if draft := attempt(file, region, headers, section_size, tail=tail):
                return draft
    return None


def last_draft(file: LinkedFile, section_size: int, *, may_move_table: bool) -> Draft:
    """Return the draft for a file without room in place: with `may_move_table`, that with a new table at the end.

    Raises `EmbedError` with the reason when there is none.
    """
    if against_tail := reason_against_tail(file):
        raise InterpreterError(f"there is no room without a new last segment, and {against_tail}")
    if may_move_table:
        return _with_table_at_end(file, head_region(file), section_size)
    raise EmbedError(
        "the program headers cannot grow in place: what follows them cannot move "
        "(on a file that is stripped already, the table may move to the end: --header-table end)"
    )


def _with_table_at_end(file: LinkedFile, region: HeadRegion, section_size: int) -> Draft:
    """Return the draft that leaves the old table where it is, and puts a new one before the section."""
    block, table = end_block(file, section_size)
    segments = list(file.segments)
    _insert_load(segments, _tail_load(file, block))
    segments.append(_sframe_entry(block))
    segments = with_table_at(segments, table, block.vaddr_of(table))
    segments = [without_execution(segment) for segment in segments]
    return Draft(region, block, tuple(segments), {}, ("table-at-end",), warnings_for(file), table)


def _without_repeated_note(file: LinkedFile, headers: _KeptHeaders) -> _KeptHeaders | None:
    """Return the headers without the PT_NOTE that repeats PT_GNU_PROPERTY; None when none may be dropped."""
    properties = {s for s in headers.kept if s.type == PT_GNU_PROPERTY}
    for index, segment in enumerate(headers.kept):
        twin = segment._replace(type=PT_GNU_PROPERTY)
        if segment.type == PT_NOTE and twin in properties and may_be_dropped(file, segment):
            return _KeptHeaders(headers.kept[:index] + headers.kept[index + 1 :], ("repeated-note",))
    return None


def _without_table_entry(file: LinkedFile, headers: _KeptHeaders) -> _KeptHeaders | None:
    """Return the headers without PT_PHDR for a static executable at fixed addresses; None for any other file.

    PT_PHDR gives a dynamic loader the load bias. A static executable has none, and GNU ld omits the entry there.
    """
    if file.header.type != ET_EXEC or any(s.type in (PT_INTERP, PT_DYNAMIC) for s in headers.kept):
        return None
    kept = tuple(s for s in headers.kept if s.type != PT_PHDR)
    return _KeptHeaders(kept, (*headers.sources, "table-entry")) if len(kept) < len(headers.kept) else None


def _table_end(file: LinkedFile, headers: _KeptHeaders, added: int) -> int:
    """Return the file offset of the end of a table with `added` more program headers."""
    return file.header.program_headers_offset + PROGRAM_HEADER_SIZE * (len(headers.kept) + added)


def _without_moving(
    file: LinkedFile, region: HeadRegion, headers: _KeptHeaders, section_size: int, *, tail: bool
) -> Draft | None:
    first = min((file.sections[index].file_offset for index in region.movable), default=region.limit)
    if _table_end(file, headers, 2 if tail else 1) > max(first, file.table_end):
        return None
    block = tail_block(file, (), section_size) if tail else slack_block(file, (), section_size, {})
    return _finish(file, region, headers, block, None) if block else None


def _with_moving(
    file: LinkedFile, region: HeadRegion, headers: _KeptHeaders, section_size: int, *, tail: bool
) -> Draft | None:
    if region.load is None:
        return None
    load_index = file.loads.index(region.load)
    first_slack_end = min(FIRST_PAGE_SIZE, slack_end(file, region.load))
    repacking = repack(file, region, _table_end(file, headers, 2 if tail else 1), first_slack_end)
    if repacking is None:
        return None
    taken = {} if repacking.load_end is None else {load_index: repacking.load_end}
    groups = repacking.displaced
    block = tail_block(file, groups, section_size) if tail else slack_block(file, groups, section_size, taken)
    return _finish(file, region, headers, block, repacking) if block else None


def _finish(
    file: LinkedFile, region: HeadRegion, headers: _KeptHeaders, block: AddedBlock, repacking: Repacking | None
) -> Draft:
    moved: dict[int, NewPlace] = {}
    warnings: list[str] = []
    load_ends: dict[int, int] = {}
    if repacking:
        moved.update((i, NewPlace(region.vaddr_of(offset), offset)) for i, offset in repacking.placed.items())
        moved.update((i, NewPlace(block.vaddr_of(offset), offset)) for i, offset in block.placed.items())
        moved = {i: place for i, place in moved.items() if place.file_offset != file.sections[i].file_offset}
        warnings += repacking.warnings
        if repacking.load_end is not None and region.load is not None:
            load_ends[file.loads.index(region.load)] = repacking.load_end
    if block.load_index is not None:
        load_ends[block.load_index] = block.end
    segments = _moved_segments(file, headers.kept, moved, warnings)
    segments = _extended_loads(segments, load_ends)
    if block.load_index is None:
        _insert_load(segments, _tail_load(file, block))
    segments.append(_sframe_entry(block))
    table_size = PROGRAM_HEADER_SIZE * len(segments)
    segments = [s._replace(file_size=table_size, memory_size=table_size) if s.type == PT_PHDR else s for s in segments]
    segments = [without_execution(segment) for segment in segments]
    sources: tuple[HeaderSource, ...] = (*headers.sources, *(("moved-sections",) if moved else ()))
    return Draft(region, block, tuple(segments), moved, sources or ("free-entries",), tuple(warnings))


def _moved_segments(
    file: LinkedFile,
    segments: tuple[ProgramHeader, ...],
    moved: dict[int, NewPlace],
    warnings: list[str],
) -> list[ProgramHeader]:
    """Return the program headers with PT_INTERP, PT_NOTE and PT_GNU_PROPERTY at the new places of their sections."""
    result = []
    following = FollowingSegments(file, segments)
    for segment in segments:
        covered = following.sections.get(segment, [])
        deltas = {moved[index].vaddr - file.sections[index].vaddr if index in moved else 0 for index in covered}
        if len(deltas) > 1:
            kept = next((index for index in covered if file.names[index] == BUILD_ID_NAME), covered[0])
            others = ", ".join(shown_name(file.names[index]) for index in covered if index != kept)
            warnings.append(f"{others} is no longer in a PT_NOTE segment, only in the section table")
            covered = [kept]
            size = file.sections[kept].size
            segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
        if covered and covered[0] in moved:
            vaddr, file_offset = moved[covered[0]]
            segment = segment._replace(  # noqa: PLW2901
                file_offset=file_offset, vaddr=vaddr, paddr=vaddr if segment.paddr else 0
            )
        elif covered and len(deltas) > 1:
            section = file.sections[covered[0]]
            segment = segment._replace(  # noqa: PLW2901
                file_offset=section.file_offset,
                vaddr=section.vaddr,
                paddr=section.vaddr if segment.paddr else 0,
            )
        result.append(segment)
    return result


def _extended_loads(segments: list[ProgramHeader], load_ends: dict[int, int]) -> list[ProgramHeader]:
    result, number = [], 0
    for segment in segments:
        if segment.type == PT_LOAD:
            if number in load_ends:
                size = load_ends[number] - segment.file_offset
                segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
            number += 1
        result.append(segment)
    return result


def _tail_load(file: LinkedFile, block: AddedBlock) -> ProgramHeader:
    size = block.end - block.file_offset
    alignment = max(4096, *(load.alignment for load in file.loads))
    return ProgramHeader(PT_LOAD, PF_R, block.file_offset, block.vaddr, block.vaddr, size, size, alignment)


def _sframe_entry(block: AddedBlock) -> ProgramHeader:
    vaddr, size = block.section_vaddr, block.section_size
    return ProgramHeader(PT_GNU_SFRAME, PF_R, block.section_file_offset, vaddr, vaddr, size, size, SECTION_ALIGNMENT)


def _insert_load(segments: list[ProgramHeader], load: ProgramHeader) -> None:
    """Insert the new PT_LOAD, which has the highest address, after the others: they are in address order."""
    last = max(index for index, segment in enumerate(segments) if segment.type == PT_LOAD)
    segments.insert(last + 1, load)
