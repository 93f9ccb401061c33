# SPDX-License-Identifier: Apache-2.0
"""The last resort: move the program headers to the new segment at the end of the loaded part, before `.sframe`.

This works for nearly every file, since nothing else has to move. Users have to request it, since some tools damage
such files (docs/explanation/embedding.md lists those that were tried). The old table stays where it was, unused.

The new segment is as far from the first one in the file as in memory: kernels before 5.18 compute AT_PHDR as the load
address plus the table's file offset, wherever the table is mapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import ET_EXEC, PF_X, PT_INTERP, PT_PHDR
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.room import SECTION_ALIGNMENT, AddedBlock, tail_alignment

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.rewrite.gate import LinkedFile

#: Of segments that start at one file offset, llvm-objcopy regards the first as the parent of the others. This must not
#: be PT_PHDR, hence the gap. Without PT_PHDR the table comes first, which is where GNU strip before 2.44 puts it.
_GAP_WITH_ENTRY: Final = 16
#: The most zeros (bytes) that are written to the file in place of .bss.
_LARGEST_PADDING: Final = 1 << 24


def end_block(file: LinkedFile, section_size: int) -> tuple[AddedBlock, int]:
    """Return the new segment's block, and the file offset in it of the program headers, which get two more entries.

    Raises `EmbedError` when the program headers do not follow the ELF header, or too much padding would be needed.
    """
    if file.header.program_headers_offset != FILE_HEADER_SIZE:
        raise EmbedError("the program headers do not follow the ELF header")
    distance = _first_distance(file)
    page = tail_alignment(file)
    end_vaddr = max(load.end_vaddr for load in file.loads)
    start = round_up(max(end_vaddr - distance, file.loaded_end), page)
    if start - file.loaded_end > max(_LARGEST_PADDING, len(file.data) // 4):
        raise EmbedError(f"{start - file.loaded_end} zero bytes would be needed in the file in place of .bss")
    table = start + (_GAP_WITH_ENTRY if any(segment.type == PT_PHDR for segment in file.segments) else 0)
    section = round_up(table + PROGRAM_HEADER_SIZE * (len(file.segments) + 2), SECTION_ALIGNMENT)
    return AddedBlock(start, start + distance, {}, section, section_size, section + section_size, None), table


def _first_distance(file: LinkedFile) -> int:
    """Return the distance of addresses from file offsets in the first segment."""
    return file.loads[0].vaddr - file.loads[0].file_offset


def warnings_for(file: LinkedFile) -> tuple[str, ...]:
    """Return the warning that names the tools which would damage the file."""
    is_program = file.header.type == ET_EXEC or any(segment.type == PT_INTERP for segment in file.segments)
    text = "the program headers are at the end of what is loaded: strip must have run before (eu-strip would damage "
    if is_program:
        text += "the file, GNU strip before 2.44 its .sframe; after any GNU strip, kernels before 5.18 do not start it)"
    else:
        text += "the file)"
    return (text,)


def with_table_at(segments: list[ProgramHeader], file_offset: int, vaddr: int) -> list[ProgramHeader]:
    """Return the program headers with PT_PHDR set to the address and size of their table."""
    size = PROGRAM_HEADER_SIZE * len(segments)
    return [
        s._replace(file_offset=file_offset, vaddr=vaddr, paddr=vaddr, file_size=size, memory_size=size)
        if s.type == PT_PHDR
        else s
        for s in segments
    ]


def table_is_in(file: LinkedFile, load: ProgramHeader | None) -> bool:
    """Whether the program headers are where `end_block` puts them: at the start of this PT_LOAD."""
    if load is None or load.file_offset == 0:
        return False
    return file.header.program_headers_offset - load.file_offset in (0, _GAP_WITH_ENTRY)


def segments_at_old_place(file: LinkedFile, segments: list[ProgramHeader]) -> list[ProgramHeader]:
    """Return the program headers for their old place after the ELF header, where the old table still is.

    PT_PHDR gets PF_X back if the old table has it. Raises `EmbedError` when something else is there; GNU strip leaves
    zeros.
    """
    size = PROGRAM_HEADER_SIZE * len(segments)
    old = bytes(file.data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + size])
    restored = with_table_at(segments, FILE_HEADER_SIZE, FILE_HEADER_SIZE + _first_distance(file))
    for number, segment in enumerate(restored):
        entry = segment._replace(flags=segment.flags | PF_X).pack(file.order)
        if segment.type == PT_PHDR and old[PROGRAM_HEADER_SIZE * number :][:8] == entry[:8]:
            restored[number] = segment._replace(flags=segment.flags | PF_X)
    packed = b"".join(segment.pack(file.order) for segment in restored)
    # p_type and p_flags identify an entry: tools change the rest when they move things.
    starts = range(0, size, PROGRAM_HEADER_SIZE)
    if any(old) and any(old[at : at + 8] != packed[at : at + 8] for at in starts):
        raise EmbedError("the old place of the program headers, after the ELF header, is in use")
    return restored
