# SPDX-License-Identifier: Apache-2.0
"""Tables that refer to code, and code itself, whose bytes thousands of section headers share."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support import cfi_asm as asm
from tests.support.audited import assembled
from tests.support.bounds import run_within_bound
from tests.support.samples import CODE, FRAME_VADDR, TEXT_VADDR, push_fp

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

ALLOC: Final = 2
SHT_PROGBITS, SHT_RELA, SHT_RELR = 1, 4, 19
MORE_VADDR: Final = 0x1000000
FUNCTION_SIZE: Final = 32
HEADER_SIZE: Final = 64
#: Bytes that are shared, and headers that share them.
SHARED_SIZE: Final = 400_000
HEADER_COUNT: Final = 2000


def library(more: asm.Section, *, step: int = 0, has_code: bool = False) -> bytes:
    """Return a library of two functions with padding in between, and thousands of headers for one more section.

    Each is `step` bytes further in the address space; `has_code`: two functions begin there, far from one another.
    """
    starts = [TEXT_VADDR, TEXT_VADDR + FUNCTION_SIZE + 16]
    if has_code:
        places = range(MORE_VADDR, MORE_VADDR + step * HEADER_COUNT, step)
        starts += [place + offset for place in places for offset in (0, len(more.data) - FUNCTION_SIZE - 8)]
    fdes = (push_fp(AMD64, start, FUNCTION_SIZE) for start in starts)
    frame = asm.EhFrame((*fdes, asm.Terminator()), FRAME_VADDR).assemble()
    text = b"\xc3" * FUNCTION_SIZE + bytes(16) + b"\xc3" * FUNCTION_SIZE
    data = asm.elf_file(
        AMD64.elf_machine,
        (
            asm.Section(".text", text, SHT_PROGBITS, CODE, TEXT_VADDR, align=16),
            more,
            asm.Section(".eh_frame", frame, SHT_PROGBITS, ALLOC, FRAME_VADDR, align=8),
        ),
        file_type=3,
        segments=(asm.Segment(1, 5, (".text",)),),
        symbols=(asm.Symbol("start", TEXT_VADDR),),
    )
    return with_headers(data, index=2, count=HEADER_COUNT - 1, step=step)


def with_headers(data: bytes, *, index: int, count: int, step: int) -> bytes:
    """Return a file with more headers for a section's bytes; the table is at the end."""
    out = bytearray(data)
    table, section_count = struct.unpack_from("<Q", out, 0x28)[0], struct.unpack_from("<H", out, 0x3C)[0]
    header = bytearray(out[table + HEADER_SIZE * index : table + HEADER_SIZE * (index + 1)])
    headers = bytes(out[table : table + HEADER_SIZE * section_count])
    for _ in range(count):
        struct.pack_into("<Q", header, 16, struct.unpack_from("<Q", header, 16)[0] + step)
        headers += header
    out += bytes(-len(out) % 8)
    struct.pack_into("<Q", out, 0x28, len(out))
    struct.pack_into("<H", out, 0x3C, section_count + count)
    return bytes(out) + headers


RELA: Final = struct.pack("<QQq", MORE_VADDR, 8, TEXT_VADDR) * (SHARED_SIZE // 24)
#: Bitmaps of compact relocations that name no place, and all of them.
NO_PLACES, ALL_PLACES = (1).to_bytes(8, "little"), b"\xff" * 8
#: Two functions as far apart as they can be, with padding at the end of each.
FAR_CODE: Final = b"\xc3" * FUNCTION_SIZE + bytes(8) + b"\xc3" * (SHARED_SIZE - FUNCTION_SIZE - 16) + bytes(8)


@pytest.mark.parametrize(
    ("name", "type_", "flags", "link", "data"),
    [
        (".rela.dyn", SHT_RELA, ALLOC, 0, RELA),
        (".rela.text", SHT_RELA, 0, 4, RELA),
        (".relr.dyn", SHT_RELR, ALLOC, 0, NO_PLACES * (SHARED_SIZE // 8)),
        (".relr.dyn", SHT_RELR, ALLOC, 0, ALL_PLACES * (SHARED_SIZE // 8)),
        ("__patchable_function_entries", SHT_PROGBITS, ALLOC, 0, bytes(SHARED_SIZE)),
    ],
)
def test_tables(name: str, type_: int, flags: int, link: int, data: bytes, tmp_path: Path) -> None:
    """Each table is read once for each of its headers."""
    vaddr = MORE_VADDR if flags & ALLOC else 0
    whole = library(asm.Section(name, data, type_, flags, vaddr, link=link, info=1, align=8))
    path = tmp_path / "in.so"
    path.write_bytes(whole)
    run = run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=len(whole))
    assert run.is_answered(0)


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


def test_code(tmp_path: Path) -> None:
    """Code between functions is read in windows, and each header has windows of its own."""
    more = asm.Section(".more", FAR_CODE, SHT_PROGBITS, CODE, MORE_VADDR, align=16)
    whole = library(more, step=0x70000, has_code=True)
    path = tmp_path / "in.so"
    path.write_bytes(whole)
    converted = run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=len(whole))
    counted = run_within_bound("coverage", path, input_size=len(whole))
    assert {converted.status, counted.status} <= {0, 3}, (converted.err[-300:], counted.err[-300:])
