# SPDX-License-Identifier: Apache-2.0
"""The last resort: the program headers in the new segment at the end of the loaded part, in front of `.sframe`.

It fits every file, since nothing has to give way, and it has to be asked for, since not every tool leaves such a file
in order (docs/embedding.md has what was tried). The old table stays where it was, out of use.

The new segment is as far from the first one in the file as in memory: kernels before 5.18 take AT_PHDR for the load
address plus the table's file offset, wherever the table is mapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import ET_EXEC, PT_INTERP, PT_PHDR
from cfi2sframe.elf.records import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.room import SECTION_ALIGNMENT, Block, tail_alignment

if TYPE_CHECKING:
    from cfi2sframe.elf.records import ProgramHeader
    from cfi2sframe.rewrite.gate import Layout

#: llvm-objcopy takes the first of the segments that start at one place for the holder of the others. With PT_PHDR in
#: front of the table that must not be PT_PHDR; without it the table comes first, as GNU strip before 2.44 puts it.
_GAP_WITH_ENTRY: Final = 16
#: Zeros in the file take the place of what .bss has in memory; more of them are not worth a section.
_LARGEST_PADDING: Final = 1 << 24


def end_block(layout: Layout, section_size: int) -> tuple[Block, int]:
    """Return the new segment's block, and the file offset of the program headers in it, two more than there are.

    Raises `EmbedError` when the file keeps its program headers in an unusual place, or would need too much padding.
    """
    if layout.header.program_headers_offset != FILE_HEADER_SIZE:
        raise EmbedError("the program headers are not behind the ELF header")
    distance = _first_distance(layout)
    page = tail_alignment(layout)
    end_vaddr = max(load.end_vaddr for load in layout.loads)
    start = round_up(max(end_vaddr - distance, layout.loaded_end), page)
    if start - layout.loaded_end > max(_LARGEST_PADDING, len(layout.data) // 4):
        raise EmbedError(f"{start - layout.loaded_end} zero bytes would have to stand for .bss in the file")
    table = start + (_GAP_WITH_ENTRY if any(segment.type == PT_PHDR for segment in layout.segments) else 0)
    section = round_up(table + PROGRAM_HEADER_SIZE * (len(layout.segments) + 2), SECTION_ALIGNMENT)
    return Block(start, start + distance, {}, section, section_size, section + section_size, None), table


def _first_distance(layout: Layout) -> int:
    """Return how far addresses are from file offsets in the first segment."""
    return layout.loads[0].vaddr - layout.loads[0].file_offset


def warnings_for(layout: Layout) -> tuple[str, ...]:
    """Return what must not be done to the file afterwards."""
    is_program = layout.header.type == ET_EXEC or any(segment.type == PT_INTERP for segment in layout.segments)
    text = "the program headers are at the end of what is loaded: strip must have run before (eu-strip would damage "
    if is_program:
        text += (
            "the file, GNU strip before 2.44 its .sframe; behind any GNU strip, kernels before 5.18 do not start it)"
        )
    else:
        text += "the file)"
    return (text,)


def with_table_at(segments: list[ProgramHeader], file_offset: int, vaddr: int) -> list[ProgramHeader]:
    """Return the program headers with PT_PHDR leading to their table's place."""
    size = PROGRAM_HEADER_SIZE * len(segments)
    return [
        s._replace(file_offset=file_offset, vaddr=vaddr, paddr=vaddr, file_size=size, memory_size=size)
        if s.type == PT_PHDR
        else s
        for s in segments
    ]


def table_is_in(layout: Layout, load: ProgramHeader | None) -> bool:
    """Say whether the program headers are where `end_block` puts them: at the start of this PT_LOAD."""
    if load is None or load.file_offset == 0:
        return False
    return layout.header.program_headers_offset - load.file_offset in (0, _GAP_WITH_ENTRY)


def segments_before(layout: Layout, segments: list[ProgramHeader]) -> list[ProgramHeader]:
    """Return the program headers for the place behind the ELF header, where the old table still is.

    Raises `EmbedError` when something else is there by now; zeros are what GNU strip leaves.
    """
    size = PROGRAM_HEADER_SIZE * len(segments)
    old = bytes(layout.data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + size])
    restored = with_table_at(segments, FILE_HEADER_SIZE, FILE_HEADER_SIZE + _first_distance(layout))
    packed = b"".join(segment.pack(layout.order) for segment in restored)
    # Types and flags, eight bytes each, stay what they are when tools move things.
    starts = range(0, size, PROGRAM_HEADER_SIZE)
    if any(old) and any(old[at : at + 8] != packed[at : at + 8] for at in starts):
        raise EmbedError("the place of the program headers behind the ELF header is taken")
    return restored
