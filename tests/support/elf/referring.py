# SPDX-License-Identifier: Apache-2.0
"""Linked files with code and data that may refer to a few bytes."""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.constants import elf as c
from tests.support.elf.elf_asm import Section, Segment, elf_file

READ_VADDR, TEXT_VADDR, DATA_VADDR, GOT_VADDR = 0x300, 0x2000, 0x100000, 0x200010
SIZE: Final = 0x20
CODE, DATA = c.SHF_ALLOC | c.SHF_EXECINSTR, c.SHF_ALLOC | c.SHF_WRITE
READ: Final = Section(".read", bytes(SIZE), c.SHT_NOTE, c.SHF_ALLOC, READ_VADDR, align=4)
SPANS: Final = ((READ_VADDR, READ_VADDR + SIZE),)
#: mov x5, x6
MOVE: Final = 0xAA0603E5


def file_of(
    arch: Arch,
    code: bytes,
    data: bytes = bytes(8),
    *,
    kind: int = c.ET_DYN,
    more: Sequence[Section] = (),
    segments: Iterable[Segment] = (),
) -> bytes:
    """Return a linked file with what is read at `READ_VADDR`, code, data, and a GOT; `more` follows the code."""
    return elf_file(
        arch.elf_machine,
        (
            READ,
            Section(".text", code, flags=CODE, addr=TEXT_VADDR),
            *more,
            Section(".data", data, flags=DATA, addr=DATA_VADDR),
            Section(".got.plt", bytes(24), flags=DATA, addr=GOT_VADDR),
        ),
        file_type=kind,
        little_endian=arch.byte_order == "<",
        segments=(
            Segment(c.PT_LOAD, c.PF_R, (".read",), headers=True),
            Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text", *(section.name for section in more))),
            Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".data",)),
            Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".got.plt",)),
            *segments,
        ),
    )


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def adrp(at: int, target: int, register: int = 3) -> int:
    pages = (target >> 12) - (at >> 12)
    if not -(1 << 20) <= pages < 1 << 20:
        raise struct.error
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register
