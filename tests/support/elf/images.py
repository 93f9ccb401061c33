# SPDX-License-Identifier: Apache-2.0
"""A linked file and an object of a few sections, whose addresses tests know."""

from cfi2sframe.constants import elf as c
from tests.support.dwarf import cfi_asm as asm

TEXT_VADDR, DATA_VADDR = 0x401000, 0x403000
ALLOC_CODE = c.SHF_ALLOC | c.SHF_EXECINSTR


def linked() -> bytes:
    """An executable: code in a first segment, data and .bss in a second."""
    sections = (
        asm.Section(".text", b"\xc3" * 0x80, flags=ALLOC_CODE, addr=TEXT_VADDR, align=16),
        asm.Section(".fini", b"\xc3" * 0x10, flags=ALLOC_CODE, addr=TEXT_VADDR + 0x100, align=4),
        asm.Section(".data", b"DATA" * 4, flags=c.SHF_ALLOC | c.SHF_WRITE, addr=DATA_VADDR, align=8),
        asm.Section(".bss", b"", c.SHT_NOBITS, c.SHF_ALLOC | c.SHF_WRITE, DATA_VADDR + 0x10, align=8, nobits_size=0x40),
        asm.Section(".comment", b"nothing"),
    )
    return asm.elf_file(
        c.EM_X86_64,
        sections,
        file_type=c.ET_EXEC,
        segments=(
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text", ".fini")),
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".data", ".bss")),
        ),
    )


OBJECT_SECTIONS = (
    asm.Section(".text", b"\xc3" * 0x21, flags=ALLOC_CODE, align=16),
    asm.Section(".comment", b"compiler"),
    asm.Section(".text.b", b"\xc3" * 0x10, flags=ALLOC_CODE, align=64),
    asm.Section(".bss", type=c.SHT_NOBITS, flags=c.SHF_ALLOC | c.SHF_WRITE, align=32, nobits_size=0x1000),
    asm.Section(".rodata", b"r" * 5, flags=c.SHF_ALLOC, align=1),
    asm.Section(".empty", b"", flags=ALLOC_CODE, align=1),
)


def an_object(symbols: tuple[asm.Symbol, ...] = ()) -> bytes:
    return asm.elf_file(c.EM_X86_64, OBJECT_SECTIONS, symbols=symbols)
