# SPDX-License-Identifier: Apache-2.0
"""Synthetic AMD64 libraries with any number of FDEs, to measure how cost grows with size."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of a function: no program advances further.
FUNCTION_SIZE = 0x600
TEXT_VADDR = 0x1000_0000
HEADERS_SIZE = 0x1000
#: The share of FDEs that repeat an earlier program, as in large libraries.
REPEATED_SHARE = 0.64
#: pcrel sdata4 pointers; CFA = rsp+8, RA at CFA-8.
CIE_BODY = b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\0\0"


def make_library(path: Path, fde_count: int, *, recurs: bool) -> None:
    """Write a shared library of so many functions; its code is a hole in the file.

    `recurs`: distinct programs differ only in their advances, as in real libraries. Otherwise no two of them have the
    same instructions, so that no cached result can be used.
    """
    cfi = _eh_frame(fde_count, recurs=recurs)
    text_offset = -(-(HEADERS_SIZE + len(cfi)) // 0x1000) * 0x1000
    text_size = fde_count * FUNCTION_SIZE
    names = b"\0.text\0.eh_frame\0.shstrtab\0"
    names_offset = text_offset + text_size
    table_offset = names_offset + len(names) + -len(names) % 8
    with path.open("wb") as file:
        file.write(_file_header(table_offset))
        file.write(_segment(4, 0, 0, HEADERS_SIZE + len(cfi)))
        file.write(_segment(5, text_offset, TEXT_VADDR, text_size))
        file.seek(HEADERS_SIZE)
        file.write(cfi)
        file.seek(names_offset)
        file.write(names)
        file.seek(table_offset)
        file.write(bytes(64))
        file.write(_section(1, 1, 6, TEXT_VADDR, text_offset, text_size))
        file.write(_section(7, 1, 2, HEADERS_SIZE, HEADERS_SIZE, len(cfi)))
        file.write(_section(17, 3, 0, 0, names_offset, len(names)))


def _file_header(table_offset: int) -> bytes:
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, table_offset, 0, 64, 56, 2, 64, 4, 3)


def _segment(flags: int, offset: int, vaddr: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", 1, flags, offset, vaddr, vaddr, size, size, 0x1000)


def _section(name: int, kind: int, flags: int, vaddr: int, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, vaddr, offset, size, 0, 0, 8, 0)


def _eh_frame(fde_count: int, *, recurs: bool) -> bytes:
    chance = random.Random(1)  # noqa: S311 - the same file each time
    parts = [struct.pack("<II", len(CIE_BODY) + 4, 0) + CIE_BODY]
    position = len(parts[0])
    programs: list[bytes] = []
    for number in range(fde_count):
        if programs and chance.random() < REPEATED_SHARE:
            program = chance.choice(programs)
        else:
            program = _program(chance)
            if not recurs:
                # The size of pushed arguments, which stack traces ignore.
                known = len(programs)
                program += bytes((0x2E, 0x80 | known & 0x7F, 0x80 | known >> 7 & 0x7F, known >> 14 & 0x7F))
            programs.append(program)
        body = b"\0" + program + bytes(-(17 + len(program)) % 8)
        field_vaddr = HEADERS_SIZE + position + 8
        start = TEXT_VADDR + number * FUNCTION_SIZE - field_vaddr
        parts.append(struct.pack("<IIiI", len(body) + 12, position + 4, start, FUNCTION_SIZE) + body)
        position += len(parts[-1])
    return b"".join([*parts, bytes(4)])


def _program(chance: random.Random) -> bytes:
    """Return a sequence of pushes, and epilogues that undo them."""
    pushed = chance.choices((0, 1, 2, 4, 6), (10, 20, 25, 25, 20))[0]
    code, depth = b"", 8
    for register in range(pushed):
        depth += 8
        code += bytes((0x41 + (register & 1), 0x0E, depth, 0x80 | (3, 6, 12, 13, 14, 15)[register], 2 + register))
    for _ in range(chance.choices((2, 3, 4), (70, 20, 10))[0] if pushed else 0):
        advance = chance.randrange(2, 250)
        code += bytes((2, advance, 0x0A))
        for left in range(pushed):
            code += bytes((0x41, 0x0E, depth - 8 * (left + 1)) if left else (0x0E, depth - 8))
        code += b"\x41\x0b"
    return code
