# SPDX-License-Identifier: Apache-2.0
"""Where the section can live: slack behind a read-only segment, or a new segment behind all others."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import (
    DF_1_PIE,
    DT_FLAGS_1,
    DT_NEEDED,
    ET_DYN,
    PF_R,
    PF_W,
    PF_X,
    PT_INTERP,
    PT_LOAD,
)
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.movable import dynamic_entries

if TYPE_CHECKING:
    from cfi2sframe.elf.records import ProgramHeader
    from cfi2sframe.rewrite.gate import Layout
    from cfi2sframe.rewrite.header_room import Group

#: Largest page of the architectures at hand (AArch64); segments that share no such page never meet in memory.
LARGEST_PAGE_SIZE: Final = 1 << 16
SECTION_ALIGNMENT: Final = 8
_BLOCK_ALIGNMENT: Final = 16
_ADDRESS_END: Final = 1 << 64


class Block(NamedTuple):
    """`.sframe` and the moved sections behind it: file offsets, and their common distance to the addresses.

    `load_index` is the extended PT_LOAD among `Layout.loads`, or None for a new one.
    """

    file_offset: int
    vaddr: int
    placed: dict[int, int]
    section_file_offset: int
    section_size: int
    end: int
    load_index: int | None

    def vaddr_of(self, file_offset: int) -> int:
        """Return the address of a byte of the block."""
        return file_offset - self.file_offset + self.vaddr


def slack_behind(layout: Layout, load: ProgramHeader, starts: list[int] | None = None) -> int:
    """Return the file offset up to which a PT_LOAD can be extended over zero bytes that nobody uses.

    The end stays below the largest page that the next segment touches, in the file as in memory. `starts` is
    `used_starts(layout)`, for whoever asks more than once.
    """
    end = load.file_offset + load.file_size
    if load.file_size != load.memory_size or load.file_size == 0:
        return end
    starts = used_starts(layout) if starts is None else starts
    following = bisect_left(starts, end)
    limit = min([*starts[following : following + 1], len(layout.data)])
    # They are in the order of their addresses.
    above = bisect_left(layout.loads, load.end_vaddr, key=lambda other: other.vaddr)
    if above < len(layout.loads):
        page = max(4096, *(other.alignment for other in layout.loads))
        limit = min(limit, end + max(layout.loads[above].vaddr // page * page - load.end_vaddr, 0))
    if limit <= end:
        return end
    unused = bytes(layout.data[end:limit])
    return end + len(unused) - len(unused.lstrip(b"\0"))


def used_starts(layout: Layout) -> list[int]:
    """Return the file offsets where something starts that the headers describe, ascending."""
    starts = [segment.file_offset for segment in layout.segments if segment.file_size]
    starts += [start for start, _, _ in layout.contents]
    if layout.sections:
        starts.append(layout.header.section_headers_offset)
    return sorted(starts)


def slack_block(layout: Layout, groups: tuple[Group, ...], section_size: int, taken: dict[int, int]) -> Block | None:
    """Return a block in the slack of the last read-only segment that has enough, or None.

    A segment with code is second choice, and only if the linker put the unwind tables there too (as it does
    without `-z separate-code`): a linker's own `.sframe` would be in the same segment then.
    `taken` maps indices of PT_LOAD entries to the file offset where their slack begins by now.
    """
    candidates = [i for i, load in enumerate(layout.loads) if load.flags & (PF_R | PF_W | PF_X) == PF_R]
    candidates = _with_tables_among_code(layout) + candidates
    starts = used_starts(layout)
    needed = section_size + sum(group.size for group in groups)
    for index in reversed(candidates):
        load = layout.loads[index]
        start = taken.get(index, load.file_offset + load.file_size)
        limit = slack_behind(layout, load, starts)
        if limit - start < needed:
            continue
        block = _fill(start, load.vaddr - load.file_offset + start, groups, section_size, index)
        if block.end <= limit:
            return block
    return None


def _with_tables_among_code(layout: Layout) -> list[int]:
    tables = [s.vaddr for name, s in zip(layout.names, layout.sections, strict=True) if name == ".eh_frame"]
    tables.sort()
    return [
        index
        for index, load in enumerate(layout.loads)
        if load.flags & (PF_R | PF_W | PF_X) == PF_R | PF_X
        and bisect_left(tables, load.vaddr) < bisect_left(tables, load.end_vaddr)
    ]


def tail_block(layout: Layout, groups: tuple[Group, ...], section_size: int) -> Block:
    """Return a block behind everything loaded, in the file as in memory.

    The address is chosen to be congruent to the file offset, rather than the file padded.
    """
    start = round_up(layout.loaded_end, _BLOCK_ALIGNMENT)
    page = tail_alignment(layout)
    end_vaddr = max(load.end_vaddr for load in layout.loads)
    vaddr = round_up(end_vaddr, page) + start % page
    block = _fill(start, vaddr, groups, section_size, None)
    if block.vaddr_of(block.end) > _ADDRESS_END:
        raise EmbedError("no addresses are left behind the last segment")
    return block


def tail_alignment(layout: Layout) -> int:
    """Return what the address and the file offset of a new segment are congruent to: 64 KiB or more."""
    return max(LARGEST_PAGE_SIZE, *(load.alignment for load in layout.loads))


def _fill(start: int, start_vaddr: int, groups: tuple[Group, ...], section_size: int, load_index: int | None) -> Block:
    """Lay the block out, `.sframe` first.

    llvm-objcopy takes the first of the segments that start at one place for the holder of the others: that
    must be the PT_LOAD, and PT_INTERP stands before it in the table.
    """
    placed: dict[int, int] = {}
    section_start = start + round_up(start_vaddr, SECTION_ALIGNMENT) - start_vaddr
    position = section_start + section_size
    for group in groups:
        vaddr = position - start + start_vaddr
        position += round_up(vaddr, group.alignment) - vaddr
        for index, delta in zip(group.indices, group.deltas, strict=True):
            placed[index] = position + delta
        position += group.size
    return Block(start, start_vaddr, placed, section_start, section_size, position, load_index)


def reason_against_tail(layout: Layout) -> str | None:
    """Return why a segment behind the last one is a risk for this file, if it is.

    Kernels before 6.7 clear the .bss of a program interpreter only behind its last segment. A new one there
    would leave the loader's variables unmapped, and no program of the system would start.
    """
    if layout.header.type != ET_DYN or not layout.header.entry_vaddr:
        return None
    if any(segment.type == PT_INTERP for segment in layout.segments):
        return None
    if not any(segment.type == PT_LOAD and segment.memory_size > segment.file_size for segment in layout.segments):
        return None
    entries = dynamic_entries(layout)
    if any(entry.tag == DT_NEEDED or (entry.tag == DT_FLAGS_1 and entry.value & DF_1_PIE) for entry in entries):
        return None
    return (
        "this looks like a program interpreter (ld.so), whose .bss kernels before 6.7 set up only when it ends "
        "the last segment"
    )
