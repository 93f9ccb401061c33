# SPDX-License-Identifier: Apache-2.0
"""The strategies in order of harmlessness, each tried on a file until one fits.

A draft says which program headers there will be and where things go; `assemble` turns it into changes of
bytes.
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
from cfi2sframe.elf.records import PROGRAM_HEADER_SIZE, ProgramHeader
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.cover import Cover
from cfi2sframe.rewrite.header_room import FIRST_PAGE_SIZE, HeadRegion, Repacking, head_region, repack
from cfi2sframe.rewrite.movable import BUILD_ID_NAME, nobody_misses
from cfi2sframe.rewrite.room import (
    SECTION_ALIGNMENT,
    Block,
    reason_against_tail,
    slack_behind,
    slack_block,
    tail_block,
)
from cfi2sframe.rewrite.table_at_end import end_block, warnings_for, with_table_at

if TYPE_CHECKING:
    from cfi2sframe.rewrite.gate import Layout


HeaderSource = Literal[
    "existing-entries", "free-entries", "repeated-note", "table-entry", "moved-sections", "table-at-end"
]


class Draft(NamedTuple):
    """One way to put the section in: the new program headers, the block, and what else moves.

    `moved` maps section indices to their new (address, file offset). `table_file_offset` is where the program
    headers go, None when they stay where they are.
    """

    region: HeadRegion
    block: Block
    segments: tuple[ProgramHeader, ...]
    moved: dict[int, tuple[int, int]]
    sources: tuple[HeaderSource, ...]
    warnings: tuple[str, ...]
    table_file_offset: int | None = None


class _Headers(NamedTuple):
    """The program headers that stay, and what gave the others up."""

    kept: tuple[ProgramHeader, ...]
    sources: tuple[HeaderSource, ...]


def make_draft(layout: Layout, section_size: int, *, may_move_table: bool = False) -> Draft:
    """Return the first draft that fits, from the most harmless on.

    Slack needs one program header, a new segment two. Entries that mean nothing (PT_NULL, or a gap behind
    the table) are taken first, then the PT_NOTE that repeats PT_GNU_PROPERTY; then the table grows and
    small sections move; last goes the PT_PHDR of a static executable. With `may_move_table` there is one
    more: the table goes to the end. Raises `EmbedError` when nothing fits.
    """
    region = head_region(layout)
    unchanged = _Headers(tuple(s for s in layout.segments if s.type != PT_NULL), ())
    recycled = _without_repeated_note(layout, unchanged)
    spare = _without_table_entry(layout, recycled or unchanged)
    against_tail = reason_against_tail(layout)
    tails = (False,) if against_tail else (False, True)
    attempts = [(headers, False) for headers in (unchanged, recycled)]
    attempts += [(recycled or unchanged, True), (spare, False), (spare, True)]
    for headers, moving in attempts:
        for tail in tails:
            if headers is None:
                continue
            attempt = _with_moving if moving else _without_moving
            if draft := attempt(layout, region, headers, section_size, tail=tail):
                return draft
    if against_tail:
        raise EmbedError(f"there is no room without a new last segment, and {against_tail}")
    if may_move_table:
        return _with_table_at_end(layout, region, section_size)
    raise EmbedError(
        "the program headers cannot grow in place: what follows them may not move "
        "(where strip has run already, the table may go to the end: --header-table end)"
    )


def _with_table_at_end(layout: Layout, region: HeadRegion, section_size: int) -> Draft:
    """Leave the head of the file as it is, with the old table, and write a new one in front of the section."""
    block, table = end_block(layout, section_size)
    segments = list(layout.segments)
    _insert_load(segments, _tail_load(layout, block))
    segments.append(_sframe_entry(block))
    segments = with_table_at(segments, table, block.vaddr_of(table))
    return Draft(region, block, tuple(segments), {}, ("table-at-end",), warnings_for(layout), table)


def _without_repeated_note(layout: Layout, headers: _Headers) -> _Headers | None:
    """Drop the PT_NOTE that says what PT_GNU_PROPERTY says again; None when there is none that nobody misses."""
    properties = {s for s in headers.kept if s.type == PT_GNU_PROPERTY}
    for index, segment in enumerate(headers.kept):
        twin = segment._replace(type=PT_GNU_PROPERTY)
        if segment.type == PT_NOTE and twin in properties and nobody_misses(layout, segment):
            return _Headers(headers.kept[:index] + headers.kept[index + 1 :], ("repeated-note",))
    return None


def _without_table_entry(layout: Layout, headers: _Headers) -> _Headers | None:
    """Drop PT_PHDR from a static executable at fixed addresses; None for any other file.

    PT_PHDR tells a dynamic loader how far the file was moved. Nothing moves such a file, and GNU ld leaves
    the entry out there.
    """
    if layout.header.type != ET_EXEC or any(s.type in (PT_INTERP, PT_DYNAMIC) for s in headers.kept):
        return None
    kept = tuple(s for s in headers.kept if s.type != PT_PHDR)
    return _Headers(kept, (*headers.sources, "table-entry")) if len(kept) < len(headers.kept) else None


def _table_end(layout: Layout, headers: _Headers, added: int) -> int:
    return layout.header.program_headers_offset + PROGRAM_HEADER_SIZE * (len(headers.kept) + added)


def _without_moving(
    layout: Layout, region: HeadRegion, headers: _Headers, section_size: int, *, tail: bool
) -> Draft | None:
    first = min((layout.sections[index].file_offset for index in region.movable), default=region.limit)
    if _table_end(layout, headers, 2 if tail else 1) > max(first, layout.table_end):
        return None
    block = tail_block(layout, (), section_size) if tail else slack_block(layout, (), section_size, {})
    return _finish(layout, region, headers, block, None) if block else None


def _with_moving(
    layout: Layout, region: HeadRegion, headers: _Headers, section_size: int, *, tail: bool
) -> Draft | None:
    if region.load is None:
        return None
    load_index = layout.loads.index(region.load)
    slack_end = min(FIRST_PAGE_SIZE, slack_behind(layout, region.load))
    repacking = repack(layout, region, _table_end(layout, headers, 2 if tail else 1), slack_end)
    if repacking is None:
        return None
    taken = {} if repacking.load_end is None else {load_index: repacking.load_end}
    groups = repacking.displaced
    block = tail_block(layout, groups, section_size) if tail else slack_block(layout, groups, section_size, taken)
    return _finish(layout, region, headers, block, repacking) if block else None


def _finish(layout: Layout, region: HeadRegion, headers: _Headers, block: Block, repacking: Repacking | None) -> Draft:
    moved: dict[int, tuple[int, int]] = {}
    warnings: list[str] = []
    load_ends: dict[int, int] = {}
    if repacking:
        moved.update((i, (region.vaddr_of(offset), offset)) for i, offset in repacking.placed.items())
        moved.update((i, (block.vaddr_of(offset), offset)) for i, offset in block.placed.items())
        moved = {i: place for i, place in moved.items() if place[1] != layout.sections[i].file_offset}
        warnings += repacking.warnings
        if repacking.load_end is not None and region.load is not None:
            load_ends[layout.loads.index(region.load)] = repacking.load_end
    if block.load_index is not None:
        load_ends[block.load_index] = block.end
    segments = _moved_segments(layout, headers.kept, moved, warnings)
    segments = _extended_loads(segments, load_ends)
    if block.load_index is None:
        _insert_load(segments, _tail_load(layout, block))
    segments.append(_sframe_entry(block))
    table_size = PROGRAM_HEADER_SIZE * len(segments)
    segments = [s._replace(file_size=table_size, memory_size=table_size) if s.type == PT_PHDR else s for s in segments]
    sources: tuple[HeaderSource, ...] = (*headers.sources, *(("moved-sections",) if moved else ()))
    return Draft(region, block, tuple(segments), moved, sources or ("free-entries",), tuple(warnings))


def _moved_segments(
    layout: Layout,
    segments: tuple[ProgramHeader, ...],
    moved: dict[int, tuple[int, int]],
    warnings: list[str],
) -> list[ProgramHeader]:
    """Let PT_INTERP, PT_NOTE and PT_GNU_PROPERTY follow their sections."""
    result = []
    cover = Cover(layout, segments)
    for segment in segments:
        covered = cover.sections.get(segment, [])
        deltas = {moved[index][0] - layout.sections[index].vaddr if index in moved else 0 for index in covered}
        if len(deltas) > 1:
            kept = next((index for index in covered if layout.names[index] == BUILD_ID_NAME), covered[0])
            others = ", ".join(layout.names[index] for index in covered if index != kept)
            warnings.append(f"{others} no longer lies in a PT_NOTE segment, only in the section table")
            covered = [kept]
            size = layout.sections[kept].size
            segment = segment._replace(file_size=size, memory_size=size)  # noqa: PLW2901
        if covered and covered[0] in moved:
            vaddr, file_offset = moved[covered[0]]
            segment = segment._replace(  # noqa: PLW2901
                file_offset=file_offset, vaddr=vaddr, paddr=vaddr if segment.paddr else 0
            )
        elif covered and len(deltas) > 1:
            section = layout.sections[covered[0]]
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


def _tail_load(layout: Layout, block: Block) -> ProgramHeader:
    size = block.end - block.file_offset
    alignment = max(4096, *(load.alignment for load in layout.loads))
    return ProgramHeader(PT_LOAD, PF_R, block.file_offset, block.vaddr, block.vaddr, size, size, alignment)


def _sframe_entry(block: Block) -> ProgramHeader:
    vaddr = block.vaddr_of(block.section_file_offset)
    size = block.section_size
    return ProgramHeader(PT_GNU_SFRAME, PF_R, block.section_file_offset, vaddr, vaddr, size, size, SECTION_ALIGNMENT)


def _insert_load(segments: list[ProgramHeader], load: ProgramHeader) -> None:
    """PT_LOAD entries stand in address order; the new one is the highest."""
    last = max(index for index, segment in enumerate(segments) if segment.type == PT_LOAD)
    segments.insert(last + 1, load)
