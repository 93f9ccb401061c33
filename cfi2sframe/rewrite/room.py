# SPDX-License-Identifier: Apache-2.0
"""Room for the section: slack after a read-only segment, or a new segment after all others."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PF_R, PF_W, PF_X
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.gate import round_up

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.rewrite.gate import LinkedFile
    from cfi2sframe.rewrite.header_room import MovableGroup

#: Bytes of the largest page of the supported architectures (AArch64).
LARGEST_PAGE_SIZE: Final = 1 << 16
SECTION_ALIGNMENT: Final = 8
_BLOCK_ALIGNMENT: Final = 16
_ADDRESS_END: Final = 1 << 64


class AddedBlock(NamedTuple):
    """The added bytes: `.sframe`, then sections that move there, at the same distances in memory as in the file.

    `file_offset` and `vaddr` are those of the block, `end` is the file offset of its end. `placed` maps the indices of
    moved sections to file offsets. `load_index` is the index in `LinkedFile.loads` of the PT_LOAD that is extended,
    None for a new one.
    """

    file_offset: int
    vaddr: int
    placed: dict[int, int]
    section_file_offset: int
    section_size: int
    end: int
    load_index: int | None

    @property
    def section_vaddr(self) -> int:
        """The address of `.sframe`."""
        return self.vaddr_of(self.section_file_offset)

    def vaddr_of(self, file_offset: int) -> int:
        """Return the address of a byte of the block."""
        return file_offset - self.file_offset + self.vaddr


def slack_end(file: LinkedFile, load: ProgramHeader, starts: list[int] | None = None) -> int:
    """Return the file offset up to which a PT_LOAD can be extended over unused zero bytes.

    In memory it stays off the page on which the next segment starts, for pages as large as any alignment of segments.
    `starts` is `used_starts(file)` where the caller has it.
    """
    end = load.file_span.end
    if load.file_size != load.memory_size or load.file_size == 0:
        return end
    starts = used_starts(file) if starts is None else starts
    following = bisect_left(starts, end)
    limit = min([*starts[following : following + 1], len(file.data)])
    above = bisect_left(file.loads, load.end_vaddr, key=lambda other: other.vaddr)
    if above < len(file.loads):
        page = max(4096, *(other.alignment for other in file.loads))
        limit = min(limit, end + max(file.loads[above].vaddr // page * page - load.end_vaddr, 0))
    if limit <= end:
        return end
    unused = bytes(file.data[end:limit])
    return end + len(unused) - len(unused.lstrip(b"\0"))


def used_starts(file: LinkedFile) -> list[int]:
    """Return the file offsets, ascending, of all segments, sections and section headers."""
    starts = [segment.file_offset for segment in file.segments if segment.file_size]
    starts += [section.start for section in file.stored]
    if file.sections:
        starts.append(file.header.section_headers_offset)
    return sorted(starts)


def slack_block(
    file: LinkedFile, groups: tuple[MovableGroup, ...], section_size: int, taken: dict[int, int]
) -> AddedBlock | None:
    """Return a block in the slack of the last read-only segment that has enough, or None.

    A segment with code is the second choice, and only if the linker put the unwind tables there (as it does without
    `-z separate-code`), where it would put its own `.sframe`. `taken` maps the indices of PT_LOAD entries to the file
    offsets at which their slack starts, where moved sections use some of it.
    """
    candidates = [i for i, load in enumerate(file.loads) if load.flags & (PF_R | PF_W | PF_X) == PF_R]
    candidates = _with_tables_among_code(file) + candidates
    starts = used_starts(file)
    needed = section_size + sum(group.size for group in groups)
    for index in reversed(candidates):
        load = file.loads[index]
        start = taken.get(index, load.file_span.end)
        limit = slack_end(file, load, starts)
        if limit - start < needed:
            continue
        block = _fill(start, load.vaddr - load.file_offset + start, groups, section_size, index)
        if block.end <= limit:
            return block
    return None


def _with_tables_among_code(file: LinkedFile) -> list[int]:
    tables = [s.vaddr for name, s in zip(file.names, file.sections, strict=True) if name == ".eh_frame"]
    tables.sort()
    return [
        index
        for index, load in enumerate(file.loads)
        if load.flags & (PF_R | PF_W | PF_X) == PF_R | PF_X
        and bisect_left(tables, load.vaddr) < bisect_left(tables, load.end_vaddr)
    ]


def tail_block(file: LinkedFile, groups: tuple[MovableGroup, ...], section_size: int) -> AddedBlock:
    """Return a block after everything loaded, in the file and in memory. Raises `EmbedError` without addresses left.

    Its address is congruent to its file offset, which needs no padding in the file.
    """
    start = round_up(file.loaded_end, _BLOCK_ALIGNMENT)
    page = tail_alignment(file)
    end_vaddr = max(load.end_vaddr for load in file.loads)
    vaddr = round_up(end_vaddr, page) + start % page
    block = _fill(start, vaddr, groups, section_size, None)
    if block.vaddr_of(block.end) > _ADDRESS_END:
        raise EmbedError("no addresses are left after the last segment")
    return block


def tail_alignment(file: LinkedFile) -> int:
    """Return the bytes modulo which a new segment's address equals its file offset: 64 KiB or more."""
    return max(LARGEST_PAGE_SIZE, *(load.alignment for load in file.loads))


def _fill(
    start: int, start_vaddr: int, groups: tuple[MovableGroup, ...], section_size: int, load_index: int | None
) -> AddedBlock:
    """Return the block with its layout: `.sframe`, then the groups.

    Of segments that start at one file offset, llvm-objcopy regards the first in the table as the parent of the others.
    That has to be the PT_LOAD. PT_INTERP precedes it in the table, so `.interp` must not be first in the block.
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
    return AddedBlock(start, start_vaddr, placed, section_start, section_size, position, load_index)
