# SPDX-License-Identifier: Apache-2.0
"""Stubs spelled out byte by byte, in files that have nothing else: what no linker here writes, or none should."""

from collections.abc import Sequence
from typing import Final

from cfi2sframe import load
from cfi2sframe.abi import AMD64, Arch
from cfi2sframe.constants.elf import PF_R, PT_DYNAMIC
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Function
from tests.support.elf import elf_asm
from tests.support.elf.samples import CODE, SHF_ALLOC, loaded_file

PLT_VADDR: Final = 0x1000
GOT_VADDR: Final = 0x3000


def rel32(value: int) -> bytes:
    """A 32-bit field of AMD64."""
    return (value & 0xFFFFFFFF).to_bytes(4, "little")


def push_and_leave() -> bytes:
    """A first block of AMD64: `push GOT+8; jmp *GOT+16`, filled up with nops."""
    return b"\xff\x35" + rel32(0x2000) + b"\xff\x25" + rel32(0x2000) + b"\x90" * 4


def lazy_stub(number: int, start_offset: int) -> bytes:
    """`jmp *slot; push number; jmp first block`, where the first block is `start_offset` bytes before."""
    return b"\xff\x25" + rel32(0x3000 - 8 * number) + b"\x68" + rel32(number) + b"\xe9" + rel32(-start_offset - 16)


def lazy_stubs(count: int) -> bytes:
    """A first block and lazy stubs as GNU ld and lld write them."""
    return push_and_leave() + b"".join(lazy_stub(n, 16 * (n + 1)) for n in range(count))


def got_stub() -> bytes:
    """`jmp *slot; xchg %ax, %ax`."""
    return b"\xff\x25" + rel32(0x3000) + b"\x66\x90"


def file_with(
    *stubs: tuple[str, int, bytes],
    arch: Arch = AMD64,
    got: bytes = b"",
    dynamic: bytes = b"",
    section_headers: bool = True,
) -> ElfImage:
    """Load a file with executable sections, given by name, address and bytes, and a GOT at GOT_VADDR."""
    sections = [elf_asm.Section(name, data, 1, CODE, vaddr, entsize=4) for name, vaddr, data in stubs]
    sections += [elf_asm.Section(".got", got, 1, SHF_ALLOC, GOT_VADDR)] if got else []
    sections += [elf_asm.Section(".dynamic", dynamic, 1, SHF_ALLOC, GOT_VADDR + 0x4000)] if dynamic else []
    segments = [elf_asm.Segment(PT_DYNAMIC, PF_R, (".dynamic",))] if dynamic else []
    return load(loaded_file(arch, sections, segments, section_headers=section_headers), "handmade")


def depth_at(functions: Sequence[Function], pc: int) -> int | None:
    """Return CFA - SP at an address, by the meaning of PCINC and PCMASK; None where no function holds it."""
    for function in functions:
        if function.start_vaddr <= pc < function.end_vaddr:
            distance, block_size = pc - function.start_vaddr, function.body.repeat_size
            last = [row for row in function if row.start_delta <= (distance % block_size if block_size else distance)][
                -1
            ]
            assert last.state.cfa is not None
            return last.state.cfa.offset
    return None


def summary(functions: Sequence[Function]) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
    """Functions as (start, size, block size, [(row start, CFA - SP)])."""
    return [
        (
            function.start_vaddr,
            function.size,
            function.body.repeat_size,
            [(row.start_delta, row.cfa.offset) for row in function if row.cfa is not None],
        )
        for function in functions
    ]
