# SPDX-License-Identifier: Apache-2.0
"""Headers that ask for much: thousands of them, or thousands that refer to the same bytes, keep to the promise."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.elf import constants as c
from tests.support import cfi_asm as asm
from tests.support.audited import assembled
from tests.support.bounds import run_within_bound
from tests.support.linked_by_hand import noted_file, notes_of
from tests.support.samples import CODE, Code, cie_of, linked_file, push_fp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

VADDR: Final = 0x400000
CODE_VADDR: Final = VADDR + 0x100000
_EMPTY_NOTE: Final = struct.pack("<III", 0, 0, 1)
#: How much faster than the promise a run is where its work once grew with the square of the file's size.
QUICK: Final = 1.5


class Case(NamedTuple):
    """A file, how its conversion ends, and the most seconds that this takes."""

    make: Callable[[], bytes]
    status: int = 0
    error: str = ""
    seconds: float = 1000


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


def program(*more: asm.Section, segments: tuple[asm.Segment, ...] = ()) -> bytes:
    """Return a linked file with room for more program headers, and with bytes where it has code."""
    segments = (asm.Segment(c.PT_LOAD, 4, (".eh_frame",)), asm.Segment(c.PT_LOAD, 5, (".text",)), *segments)
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64), CODE_VADDR, 16),), VADDR).assemble()
    sections = (
        asm.Section(".eh_frame", frame, 1, c.SHF_ALLOC, VADDR, align=8),
        asm.Section(".text", bytes(16), 1, CODE, CODE_VADDR),
        *more,
    )
    free = (asm.Segment(0, 0, (".text",)),) * 2
    return asm.elf_file(AMD64.elf_machine, sections, file_type=c.ET_DYN, segments=(*segments, *free))


def relocatable(*more: asm.Section) -> Headers:
    """Return an object; its sections are 1 .text, 2 .eh_frame, then `more`."""
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64), 0, 16),)).assemble()
    sections = (
        asm.Section(".text", b"", c.SHT_NOBITS, CODE, nobits_size=64),
        asm.Section(".eh_frame", frame, 1, c.SHF_ALLOC, align=8),
        *more,
    )
    relocations = (asm.Relocation(".eh_frame", 32, "s", 2),)
    symbols = (asm.Symbol("s", info=3),)
    return Headers(asm.elf_file(AMD64.elf_machine, sections, symbols=symbols, relocations=relocations))


# --- Notes, segments and names --------------------------------------------------------------------------------------


def a_name_that_grows() -> bytes:
    """Bytes that are no UTF-8 become four characters, and one character of Unicode makes each of them four bytes."""
    count, size = 3_000, 150_000
    file = Headers(program(*[asm.Section("", b"x")] * count, asm.Section("", b"", c.SHT_STRTAB)))
    start, names_size = file.get(file.count - 1)[4:6]
    names = file.data[start : start + names_size] + "\N{GRINNING FACE}".encode() + b"\xff" * size + b"\0"
    headers, end = file.data[file.start : file.start + 64 * file.count], len(file.data)
    file.data += names + bytes(-(end + len(names)) % 8)
    file.start = len(file.data)
    struct.pack_into("<Q", file.data, 40, file.start)
    file.data += headers
    file.put(file.count - 1, offset=end, size=len(names))
    for index in range(3, 3 + count):
        file.put(index, name=names_size)
    return bytes(file.data)


def notes_that_many_segments_share() -> bytes:
    """Whether a PT_NOTE that repeats PT_GNU_PROPERTY may be removed depends on its notes, which are read for each."""
    pair_count, size = 400, 12 * 8_000
    content = _EMPTY_NOTE * (size // 12 - 1) + struct.pack("<III", 4, 4, 5)
    note = asm.Section(".note.ABI-tag", content, c.SHT_NOTE, c.SHF_ALLOC, VADDR + 0x1000)
    segments = [asm.Segment(kind, 4, (note.name,)) for kind in (c.PT_NOTE, c.PT_GNU_PROPERTY)] * pair_count
    data = bytearray(program(note, segments=(asm.Segment(c.PT_LOAD, 4, (note.name,)), *segments)))
    for number in range(pair_count):
        for at in (64 + 56 * (3 + 2 * number), 64 + 56 * (4 + 2 * number)):
            start, vaddr, paddr, *sizes = struct.unpack_from("<5Q", data, at + 8)
            moved = [place + 12 * number for place in (start, vaddr, paddr)]
            struct.pack_into("<5Q", data, at + 8, *moved, *(each - 12 * number for each in sizes))
    # The PT_LOAD entries are to ascend.
    data[120:232] = data[176:232] + data[120:176]
    return bytes(data)


def lists_of_section_indices() -> bytes:
    """Lists that share their bytes: a header of 64 bytes each names all of the file's words."""
    lists = (asm.Section("", b"", c.SHT_SYMTAB_SHNDX),) * 2_500
    file = relocatable(asm.Section("", b"\xf0\xff\xff\0" * 60_000), *lists)
    offset, size = file.get(3)[4:6]
    symbol_table = next(index for index in range(file.count) if file.get(index)[1] == c.SHT_SYMTAB)
    for index in range(file.count):
        if file.get(index)[1] == c.SHT_SYMTAB_SHNDX:
            file.put(index, offset=offset, size=size, link=symbol_table)
    struct.pack_into("<H", file.data, file.get(symbol_table)[4] + 6, 0xFFFF)
    return bytes(file.data)


def relocations_between_sections_that_could_move() -> bytes:
    """Each of many relocations could be compared with each of many sections."""
    count, relocation_count = 5_000, 12_000
    first = VADDR + 64 + 56 * 4
    notes = [asm.Section("", b"\0", c.SHT_NOTE, c.SHF_ALLOC, first + 2 * n) for n in range(count)]
    end = first + 2 * count
    entries = b"".join(struct.pack("<QQq", 0, 8, first + 1 + 2 * (n % count)) for n in range(relocation_count))
    frame_vaddr = end + -end % 8
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64), CODE_VADDR, 16),), frame_vaddr).assemble()
    sections = (
        *notes,
        asm.Section(".eh_frame", frame, 1, c.SHF_ALLOC, frame_vaddr),
        asm.Section(".rela.dyn", entries, c.SHT_RELA, c.SHF_ALLOC, frame_vaddr + 0x100),
        asm.Section(".text", bytes(16), 1, CODE, CODE_VADDR),
        asm.Section(".note.ABI-tag"),
    )
    segments = (
        asm.Segment(c.PT_LOAD, 4, ("", ".rela.dyn"), headers=True),
        asm.Segment(c.PT_LOAD, 5, (".text",)),
        *(asm.Segment(0, 0, (".text",)),) * 2,
    )
    file = Headers(asm.elf_file(AMD64.elf_machine, sections, file_type=c.ET_DYN, segments=segments))
    for index in range(1, count + 1):
        file.put(index, name=file.get(count + 4)[0])
    return bytes(file.data)


LISTS: Final = "error: the lists of section indices overlap one another\n"
CASES: Final = {
    "many notes": Case(lambda: noted_file(notes_of(9000))),
    "a name that grows": Case(a_name_that_grows, seconds=QUICK),
    "shared notes": Case(notes_that_many_segments_share),
    "extended indices": Case(lists_of_section_indices, 3, LISTS),
    "relocations": Case(relocations_between_sections_that_could_move, seconds=QUICK),
}


@pytest.mark.product
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_headers(case: Case, tmp_path: Path) -> None:
    data = case.make()
    path, out, bare = (tmp_path / name for name in ("in.elf", "out.elf", "bare.elf"))
    path.write_bytes(data)
    run = run_within_bound(path, "-o", out, input_size=len(data))
    assert (run.status, run.err.endswith(case.error)) == (case.status, True), run.err[-300:]
    assert run.seconds < case.seconds
    if case.status == 0:
        removed = run_within_bound("remove", out, "-o", bare, input_size=out.stat().st_size)
        assert removed.status == 0, removed.err[-300:]
        assert bare.read_bytes() == data
    assert run_within_bound("coverage", path, input_size=len(data)).status == 0


# --- Bytes that thousands of headers share ---------------------------------------------------------------------------

MORE_VADDR: Final = 0x1000000
FUNCTION_SIZE: Final = 32
SHARED_SIZE: Final = 400_000
HEADER_COUNT: Final = 2000


def library(more: asm.Section, *, step: int = 0, has_code: bool = False) -> bytes:
    """Return a library of two functions with padding in between, and thousands of headers for one more section.

    Each is `step` bytes further in the address space; `has_code`: two functions begin there, far from one another.
    """
    code = Code(data=b"\xc3" * FUNCTION_SIZE + bytes(16) + b"\xc3" * FUNCTION_SIZE)
    starts = [code.vaddr, code.vaddr + FUNCTION_SIZE + 16]
    if has_code:
        places = range(MORE_VADDR, MORE_VADDR + step * HEADER_COUNT, step)
        starts += [place + offset for place in places for offset in (0, len(more.data) - FUNCTION_SIZE - 8)]
    fdes = [push_fp(AMD64, start, FUNCTION_SIZE) for start in starts]
    symbols = (asm.Symbol("start", code.vaddr),)
    data = bytearray(linked_file(AMD64, fdes, codes=(code,), symbols=symbols, more=(more,)))
    file = Headers(bytes(data))
    header = file.get(3)
    data += bytes(-len(data) % 8)
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<H", data, 60, file.count + HEADER_COUNT - 1)
    data += data[file.start : file.start + 64 * file.count]
    for _ in range(HEADER_COUNT - 1):
        header[3] += step
        data += struct.pack("<IIQQQQIIQQ", *header)
    return bytes(data)


RELA: Final = struct.pack("<QQq", MORE_VADDR, 8, 0x20000) * (SHARED_SIZE // 24)
#: Bitmaps of compact relocations that name no place, and all of them.
NO_PLACES, ALL_PLACES = (1).to_bytes(8, "little"), b"\xff" * 8


@pytest.mark.parametrize(
    ("name", "type_", "flags", "link", "data"),
    [
        (".rela.dyn", c.SHT_RELA, c.SHF_ALLOC, 0, RELA),
        (".rela.text", c.SHT_RELA, 0, 4, RELA),
        (".relr.dyn", c.SHT_RELR, c.SHF_ALLOC, 0, NO_PLACES * (SHARED_SIZE // 8)),
        (".relr.dyn", c.SHT_RELR, c.SHF_ALLOC, 0, ALL_PLACES * (SHARED_SIZE // 8)),
        ("__patchable_function_entries", c.SHT_PROGBITS, c.SHF_ALLOC, 0, bytes(SHARED_SIZE)),
    ],
)
def test_tables(name: str, type_: int, flags: int, link: int, data: bytes, tmp_path: Path) -> None:
    """Each table that refers to code is read once for each of its headers."""
    vaddr = MORE_VADDR if flags & c.SHF_ALLOC else 0
    whole = library(asm.Section(name, data, type_, flags, vaddr, link=link, info=2, align=8))
    path = tmp_path / "in.so"
    path.write_bytes(whole)
    assert run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=len(whole)).is_answered(0)


def test_code(tmp_path: Path) -> None:
    """Code between functions is read in windows, and each header has windows of its own."""
    # Two functions as far apart as they can be, with padding at the end of each.
    code = b"\xc3" * FUNCTION_SIZE + bytes(8) + b"\xc3" * (SHARED_SIZE - FUNCTION_SIZE - 16) + bytes(8)
    whole = library(asm.Section(".more", code, 1, CODE, MORE_VADDR, align=16), step=0x70000, has_code=True)
    path = tmp_path / "in.so"
    path.write_bytes(whole)
    assert run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=len(whole)).status in (0, 3)
    assert run_within_bound("coverage", path, input_size=len(whole)).status in (0, 3)


@pytest.mark.oracle
def test_an_object_of_many_function_sections(tmp_path: Path) -> None:
    """What is the same for all relocation sections is looked up once: half a second, where it took half a minute."""
    function = """.section .text.f{0},"ax",@progbits
    .globl f{0}
f{0}: .cfi_startproc
    sub $8,%rsp
    .cfi_def_cfa_offset 16
    call g
    add $8,%rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"""
    padded = '.section .text.two,"ax"\nh1: .cfi_startproc\n ret\n .cfi_endproc\n .p2align 4\n'
    padded += "h2: .cfi_startproc\n ret\n .cfi_endproc\n"
    path = assembled("".join(map(function.format, range(16_000))) + padded, tmp_path)
    run = run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=path.stat().st_size)
    assert run.status == 0, run.err
    assert run.seconds < 5
