# SPDX-License-Identifier: Apache-2.0
"""Where a process begins there is no caller; an entry point of a library is no such place."""

import struct
from collections.abc import Sequence

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import DF_1_PIE, DT_FLAGS_1
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import NoRule
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.rules import at_cfa
from tests.support.elf.samples import CODE, SHF_ALLOC, TEXT_VADDR, loaded_file

#: `push rbx; pop rbx; ret`.
FUNCTION = bytes.fromhex("53 5b c3")
DATA_VADDR = 0x1000
ET_EXEC, ET_DYN = 2, 3
PT_DYNAMIC, PT_INTERP = 2, 3


def entries_of(
    code: bytes,
    function_offset: int,
    file_type: int,
    sections: Sequence[asm.Section] = (),
    segments: Sequence[asm.Segment] = (),
) -> CfiEntries:
    """Return what is derived from a file of some code, of which the first byte is the file's entry."""
    text = asm.Section(".text", code, 1, CODE, TEXT_VADDR, align=16)
    symbols = (asm.Symbol("f", TEXT_VADDR + function_offset, 3, 0x12),)
    file = loaded_file(AMD64, (*sections, text), segments, file_type=file_type, symbols=symbols, entry_vaddr=TEXT_VADDR)
    return convert_image(load(file, "sample"), Options(source="code")).cfi.entries


@pytest.mark.parametrize(
    ("file_type", "segment", "data", "is_process"),
    [
        (ET_EXEC, None, b"", True),
        (ET_DYN, None, b"", False),
        (ET_DYN, PT_INTERP, b"/lib/ld.so\0", True),
        (ET_DYN, PT_DYNAMIC, struct.pack("<QQQQ", DT_FLAGS_1, DF_1_PIE, 0, 0), True),
        (ET_DYN, PT_DYNAMIC, struct.pack("<QQQQ", DT_FLAGS_1, 1, 0, 0), False),
        # After DT_NULL, where the loader reads nothing.
        (ET_DYN, PT_DYNAMIC, struct.pack("<QQQQ", 0, 0, DT_FLAGS_1, DF_1_PIE), False),
    ],
)
def test_entry_points(file_type: int, segment: int | None, data: bytes, is_process: bool) -> None:  # noqa: FBT001
    data_section = asm.Section(".data", data or b"\0", 1, SHF_ALLOC, DATA_VADDR, align=8)
    segments = [asm.Segment(segment, 4, (".data",))] if segment is not None else []
    (entry,) = entries_of(FUNCTION, 0, file_type, [data_section], segments)
    expected = NoRule.UNDEFINED if is_process else at_cfa(-8)
    assert {state.ra for state in entry.program.table.states} == {expected}


def test_what_the_entry_calls_has_rows() -> None:
    """It is followed before anything else is."""
    entry = bytes.fromhex("e8 03 00 00 00 0f 0b 90") + FUNCTION  # call; ud2; nop
    entries = entries_of(entry, 8, ET_EXEC)
    assert list(zip(entries.starts, entries.sizes, strict=True)) == [(TEXT_VADDR, 5), (TEXT_VADDR + 8, 3)]
