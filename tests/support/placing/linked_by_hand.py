# SPDX-License-Identifier: Apache-2.0
"""Linked files spelled out header by header: many notes, of which several have one name."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from cfi2sframe.abi import AMD64
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import note
from tests.support.elf.samples import push_fp

BASE_VADDR: Final = 0x400000
PT_LOAD, PT_NOTE = 1, 4
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
SHT_NOTE: Final = 7
ET_EXEC, ET_DYN = 2, 3
_CODE_SIZE: Final = 0x40
#: The file offsets of the last segment of a sparse file.
DATA_OFFSET, DATA_END = 0x1000, 0x10000


def notes_of(count: int) -> list[bytes]:
    """Return sections of one note each, without content and of a type of its own."""
    return [note(b"FDO", 0x100 + number) for number in range(count)]


def noted_file(
    notes: Sequence[bytes], *, names: Iterable[str] = (), symbols: tuple[asm.Symbol, ...] = (), spare: int = 0
) -> bytes:
    """Return a library with notes right after its program headers, which move when these grow.

    There is a section of each of `notes`; all are called `.note.package`, unless there are `names`. So many program
    headers are `spare`, without a type.
    """
    segment_count = 3 + spare
    vaddr = BASE_VADDR + FILE_HEADER_SIZE + PROGRAM_HEADER_SIZE * segment_count
    titles = [*names, *[".note.package"] * len(notes)]
    starts = [vaddr, *(vaddr + end for end in accumulate(map(len, notes)))]
    sections = [
        asm.Section(f"n{number}", content, SHT_NOTE, SHF_ALLOC, start, align=4, title=title)
        for number, (content, start, title) in enumerate(zip(notes, starts, titles, strict=False))
    ]
    frame_vaddr = (starts[-1] + 15) // 8 * 8
    code_vaddr = frame_vaddr + 0x1000
    frame = asm.EhFrame((push_fp(AMD64, code_vaddr, _CODE_SIZE), asm.Terminator()), frame_vaddr).assemble()
    first, last = sections[0].name, sections[-1].name
    return asm.elf_file(
        AMD64.elf_machine,
        (
            *sections,
            asm.Section(".eh_frame", frame, 1, SHF_ALLOC, frame_vaddr, align=8),
            asm.Section(".text", b"\x90" * _CODE_SIZE, 1, SHF_ALLOC | SHF_EXECINSTR, code_vaddr),
        ),
        file_type=ET_DYN,
        segments=(
            asm.Segment(PT_LOAD, 4, (first, ".eh_frame"), headers=True),
            asm.Segment(PT_LOAD, 5, (".text",)),
            asm.Segment(PT_NOTE, 4, (first, last), align=4),
            *[asm.Segment(0, 0, (".text",))] * spare,
        ),
        symbols=symbols,
    )


def sparse_file(data_vaddr: int, end_vaddr: int, symbols: tuple[asm.Symbol, ...] = (), note_size: int = 0) -> bytes:
    """Return a program at a fixed address without room for program headers, and with .bss up to an address.

    The bytes of its last segment, from `data_vaddr` on, are those of the file from `DATA_OFFSET` up to `DATA_END`. A
    note of `note_size` bytes may move.
    """
    head = 64 + 56 * 2
    content = note(b"GNU", 3, bytes(max(note_size - 16, 0)))
    build_id = asm.Section(".note.gnu.build-id", content, SHT_NOTE, SHF_ALLOC, BASE_VADDR + head, align=4)
    frame_vaddr = BASE_VADDR + head + (note_size + 8 if note_size else 0)
    frame = asm.EhFrame((push_fp(AMD64, frame_vaddr + 0x100, 32), asm.Terminator()), frame_vaddr).assemble()
    sections = (
        *([build_id] if note_size else []),
        asm.Section(".eh_frame", frame, 1, SHF_ALLOC, frame_vaddr, align=8),
        asm.Section(".text", b"\x90" * 32, 1, SHF_ALLOC | SHF_EXECINSTR, frame_vaddr + 0x100),
        asm.Section(".data", b"\1" * (DATA_END - DATA_OFFSET), 1, SHF_ALLOC | SHF_WRITE, data_vaddr),
    )
    file = File(
        asm.elf_file(
            AMD64.elf_machine,
            sections,
            file_type=ET_EXEC,
            segments=(
                asm.Segment(PT_LOAD, 5, (sections[0].name, ".text"), headers=True),
                asm.Segment(PT_LOAD, 6, (".data",)),
            ),
            symbols=symbols,
        )
    )
    file.segment(PT_LOAD, 1).memsz = end_vaddr - data_vaddr
    return bytes(file)
