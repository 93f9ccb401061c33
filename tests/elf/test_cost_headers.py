# SPDX-License-Identifier: Apache-2.0
"""Headers that refer to the same bytes, or the same name, thousands of times: each run keeps to the bound."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support import cfi_asm as asm
from tests.support.bounds import run_within_bound
from tests.support.samples import CODE, TEXT_VADDR, cie_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

SHT_SYMTAB: Final = 2
SHT_STRTAB: Final = 3
SHT_RELA: Final = 4
SHT_NOTE: Final = 7
SHT_GROUP: Final = 17
SHT_SYMTAB_SHNDX: Final = 18
SHT_GNU_SFRAME: Final = 0x6FFFFFF4
PT_LOAD: Final = 1
PT_NOTE: Final = 4
PT_GNU_PROPERTY: Final = 0x6474E553
SHF_ALLOC: Final = 2
VADDR: Final = 0x400000
FDE: Final = asm.Fde(cie_of(AMD64), TEXT_VADDR, 16)


class Headers:
    """A file whose section headers are to be changed: their fields, by index."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.start = struct.unpack_from("<Q", data, 40)[0]
        self.count = struct.unpack_from("<H", data, 60)[0]

    def get(self, index: int) -> list[int]:
        return list(struct.unpack_from("<IIQQQQIIQQ", self.data, self.start + 64 * index))

    def put(self, index: int, **fields: int) -> None:
        values = self.get(index)
        for name, value in fields.items():
            values[("name", "type", "flags", "vaddr", "offset", "size", "link", "info").index(name)] = value
        struct.pack_into("<IIQQQQIIQQ", self.data, self.start + 64 * index, *values)


def run(data: bytes | bytearray, tmp_path: Path, *arguments: str) -> BoundedRun:
    path = tmp_path / "input"
    path.write_bytes(data)
    target = ("-o", tmp_path / "output") if arguments[0] in ("convert", "remove") else ()
    return run_within_bound(*arguments, path, *target, input_size=len(data))


def program(*more: asm.Section, segments: tuple[asm.Segment, ...] = ()) -> bytes:
    """Return a linked file with room for more program headers, and with bytes where it has code."""
    segments = (asm.Segment(PT_LOAD, 4, (".eh_frame",)), asm.Segment(PT_LOAD, 5, (".text",)), *segments)
    frame = asm.EhFrame((asm.Fde(FDE.cie, VADDR + 0x100000, 16),), VADDR).assemble()
    sections = (
        asm.Section(".eh_frame", frame, 1, SHF_ALLOC, VADDR, align=8),
        asm.Section(".text", bytes(16), 1, CODE, VADDR + 0x100000),
        *more,
    )
    free = (asm.Segment(0, 0, (".text",)),) * 2
    return asm.elf_file(AMD64.elf_machine, sections, file_type=3, segments=(*segments, *free))


def relocatable(*more: asm.Section) -> Headers:
    """Return an object; its sections are 1 .text, 2 .eh_frame, then `more`."""
    sections = (
        asm.Section(".text", b"", 8, CODE, nobits_size=64),
        asm.Section(".eh_frame", asm.EhFrame((asm.Fde(FDE.cie, 0, 16),)).assemble(), 1, SHF_ALLOC, align=8),
        *more,
    )
    symbols = (asm.Symbol("s", info=3),)
    return Headers(
        asm.elf_file(
            AMD64.elf_machine, sections, symbols=symbols, relocations=(asm.Relocation(".eh_frame", 32, "s", 2),)
        )
    )


# --- Lists of section indices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SHT_GROUP, SHT_SYMTAB_SHNDX])
def test_lists_of_section_indices_that_share_their_bytes(kind: int, tmp_path: Path) -> None:
    """A header of 64 bytes each names all of the file's words."""
    lists = (asm.Section("", b"", kind),) * 2_500
    sframe = asm.Section(".sframe", bytes(28), SHT_GNU_SFRAME, SHF_ALLOC)
    words = asm.Section("", b"\xf0\xff\xff\0" * 60_000)
    file = relocatable(words, *((sframe,) if kind == SHT_GROUP else ()), *lists)
    offset, size = file.get(3)[4:6]
    symbol_table = next(index for index in range(file.count) if file.get(index)[1] == SHT_SYMTAB)
    for index in range(file.count):
        if file.get(index)[1] == kind:
            file.put(index, offset=offset, size=size, link=symbol_table)
    struct.pack_into("<H", file.data, file.get(symbol_table)[4] + 6, 0xFFFF)
    result = run(file.data, tmp_path, "remove" if kind == SHT_GROUP else "convert")
    assert (result.status, "error: the lists of section indices overlap one another\n" in result.err) == (3, True)


# --- Names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_object", [False, True])
def test_a_long_name_of_many_sections(is_object: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """Bytes that are no UTF-8 become four characters, and one character of Unicode makes each of them four bytes."""
    count, size = 3_000, 150_000
    more = (*[asm.Section("", b"x")] * count, asm.Section("", b"", SHT_STRTAB))
    file = relocatable(*more) if is_object else Headers(program(*more))
    names = bytes(file.data[slice(*_range_of(file, file.count - 1))])
    end = len(file.data)
    file.data += names + "\N{GRINNING FACE}".encode() + b"\xff" * size + b"\0"
    file.data[40:48] = struct.pack("<Q", -(-len(file.data) // 8) * 8)
    old = file.start
    headers = file.data[old : old + 64 * file.count]
    file.data += bytes(-len(file.data) % 8) + headers
    file.start = len(file.data) - len(headers)
    file.put(file.count - 1, offset=end, size=len(names) + size + 5)
    for index in range(3, 3 + count):
        file.put(index, name=len(names))
    result = run(file.data, tmp_path, "convert")
    assert result.status == 0, result.err
    # Far below the promise: the work grew with the square of the file's size.
    assert result.seconds < 1.5


def _range_of(file: Headers, index: int) -> tuple[int, int]:
    offset, size = file.get(index)[4:6]
    return offset, offset + size


# --- Segments and what is in them -----------------------------------------------------------------------------------


def test_notes_that_many_segments_share(tmp_path: Path) -> None:
    """Whether a PT_NOTE that repeats PT_GNU_PROPERTY may be removed depends on its notes, which are read for each."""
    pair_count, size = 400, 12 * 8_000
    content = struct.pack("<III", 0, 0, 1) * (size // 12 - 1) + struct.pack("<III", 4, 4, 5)
    note = asm.Section(".note.ABI-tag", content, SHT_NOTE, SHF_ALLOC, VADDR + 0x1000)
    segments = [asm.Segment(kind, 4, (note.name,)) for kind in (PT_NOTE, PT_GNU_PROPERTY)] * pair_count
    segments = [asm.Segment(PT_LOAD, 4, (note.name,)), *segments]
    data = bytearray(program(note, segments=tuple(segments)))
    for number in range(pair_count):
        for at in (64 + 56 * (3 + 2 * number), 64 + 56 * (4 + 2 * number)):
            start, vaddr, paddr, *sizes = struct.unpack_from("<5Q", data, at + 8)
            moved = [place + 12 * number for place in (start, vaddr, paddr)]
            struct.pack_into("<5Q", data, at + 8, *moved, *(each - 12 * number for each in sizes))
    # The PT_LOAD entries are to ascend.
    entries = [bytes(data[at : at + 56]) for at in (64, 120, 176)]
    data[120:232] = entries[2] + entries[1]
    result = run(data, tmp_path, "convert")
    assert result.status == 3
    assert result.err.endswith("error: the segments overlap one another too often\n")


def test_relocations_that_lead_between_sections_that_could_move(tmp_path: Path) -> None:
    """Each of many relocations could be compared with each of many sections."""
    count, relocation_count = 5_000, 12_000
    first = VADDR + 64 + 56 * 4
    notes = [asm.Section("", b"\0", SHT_NOTE, SHF_ALLOC, first + 2 * n) for n in range(count)]
    end = first + 2 * count
    entries = b"".join(struct.pack("<QQq", 0, 8, first + 1 + 2 * (n % count)) for n in range(relocation_count))
    frame_vaddr = end + -end % 8
    table = asm.Section(".rela.dyn", entries, SHT_RELA, SHF_ALLOC, frame_vaddr + 0x100)
    frame = asm.EhFrame((asm.Fde(FDE.cie, VADDR + 0x100000, 16),), frame_vaddr).assemble()
    sections = (
        *notes,
        asm.Section(".eh_frame", frame, 1, SHF_ALLOC, frame_vaddr),
        table,
        asm.Section(".text", bytes(16), 1, CODE, VADDR + 0x100000),
        asm.Section(".note.ABI-tag"),
    )
    segments = (
        asm.Segment(PT_LOAD, 4, ("", ".rela.dyn"), headers=True),
        asm.Segment(PT_LOAD, 5, (".text",)),
        *(asm.Segment(0, 0, (".text",)),) * 2,
    )
    file = Headers(asm.elf_file(AMD64.elf_machine, sections, file_type=3, segments=segments))
    name = file.get(count + 4)[0]
    for index in range(1, count + 1):
        file.put(index, name=name)
    result = run(file.data, tmp_path, "convert")
    assert result.status == 0, result.err
    # Far below the promise: the work grew with the square of the file's size.
    assert result.seconds < 1.5
