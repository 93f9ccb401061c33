# SPDX-License-Identifier: Apache-2.0
"""Linked files spelled out header by header: many notes, many segments, long names, and all of them damaged at will."""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from cfi2sframe.abi import AMD64
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.elf_asm import note
from tests.support.elf.samples import push_fp

BASE_VADDR: Final = 0x400000
PT_LOAD, PT_NOTE = 1, 4
SHF_ALLOC, SHF_EXECINSTR = 2, 4
SHT_NOTE: Final = 7
ET_DYN: Final = 3
_CODE_SIZE: Final = 0x40


def notes_of(count: int) -> list[bytes]:
    """Return sections of one note each, without content and of a type of its own."""
    return [note(b"FDO", 0x100 + number) for number in range(count)]


def noted_file(notes: Sequence[bytes], *, names: Iterable[str] = (), symbols: tuple[asm.Symbol, ...] = ()) -> bytes:
    """Return a library with notes right after its program headers, which move when these grow.

    There is a section of each of `notes`; all are called `.note.package`, unless there are `names`.
    """
    segment_count = 3
    vaddr = BASE_VADDR + FILE_HEADER_SIZE + PROGRAM_HEADER_SIZE * segment_count
    chosen = [*names, *[".note.package"] * len(notes)][: len(notes)]
    # The writer knows sections by their names; they get their own afterwards.
    starts = [vaddr, *(vaddr + end for end in accumulate(map(len, notes)))]
    sections = [
        asm.Section(f"n{number}", content, SHT_NOTE, SHF_ALLOC, start, align=4)
        for number, (content, start) in enumerate(zip(notes, starts, strict=False))
    ]
    frame_vaddr = (starts[-1] + 15) // 8 * 8
    code_vaddr = frame_vaddr + 0x1000
    frame = asm.EhFrame((push_fp(AMD64, code_vaddr, _CODE_SIZE), asm.Terminator()), frame_vaddr).assemble()
    first, last = sections[0].name, sections[-1].name
    data = asm.elf_file(
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
        ),
        symbols=symbols,
    )
    return with_names(data, {f"n{number}": name for number, name in enumerate(chosen)})


def with_names(data: bytes, names: dict[str, str]) -> bytes:
    """Return a file with other section names; equal ones share a place in the string table, which is at the end."""
    out = bytearray(data + bytes(-len(data) % 8))
    table, count, index = (
        struct.unpack_from("<Q", data, 40)[0],
        struct.unpack_from("<H", data, 60)[0],
        struct.unpack_from("<H", data, 62)[0],
    )
    strings_at, size = struct.unpack_from("<24xQQ", data, table + SECTION_HEADER_SIZE * index)
    strings = bytes(data[strings_at : strings_at + size])
    new, places = bytearray(1), dict[str, int]()
    headers = bytearray(data[table : table + SECTION_HEADER_SIZE * count])
    for number in range(1, count):
        offset = struct.unpack_from("<I", headers, SECTION_HEADER_SIZE * number)[0]
        old = strings[offset : strings.index(b"\0", offset)].decode()
        name = names.get(old, old)
        if name not in places:
            places[name] = len(new)
            new += name.encode() + b"\0"
        struct.pack_into("<I", headers, SECTION_HEADER_SIZE * number, places[name])
    # Names first, headers last: the headers stay the end of the file.
    struct.pack_into("<QQ", headers, SECTION_HEADER_SIZE * index + 24, len(out), len(new))
    out += new + bytes(-len(new) % 8)
    struct.pack_into("<Q", out, 40, len(out))
    # The old tables are out of use.
    out[strings_at : strings_at + size] = bytes(size)
    out[table : table + len(headers)] = bytes(len(headers))
    return bytes(out + headers)
