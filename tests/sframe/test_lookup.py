# SPDX-License-Identifier: Apache-2.0
"""Which row is in force at a PC (version 3, 2.3.3.1 "PC types"), at and around every boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe.sframe.read import read_section
from tests.support.raw_sframe import RawFunction, RawSection

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import Section

#: Rows at 0, 4 and 9 whose CFA offset tells them apart: SP + 0, 4, 9.
ROWS = b"\x00\x03\x00\x04\x03\x04\x09\x03\x09"


def decoded(*functions: RawFunction, version: int = 3) -> Section:
    raw = RawSection(functions, version)
    return read_section(raw.assemble(), raw.vaddr)


def found(section: Section, pc: int) -> tuple[int, int | None] | None:
    """Return the function's number and the start of the row in force, which the CFA's offset repeats."""
    result = section.find(pc)
    if result is None:
        return None
    number = section.starts.index(result.function.start_vaddr)
    return number, None if result.row is None or result.row.cfa is None else result.row.cfa.offset


def test_unsorted_sections() -> None:
    """An object's functions stand in the order of its source."""
    section = decoded(RawFunction(0x20020), RawFunction(0x20000))
    assert found(section, 0x20025) == (0, 8)
    assert found(section, 0x20005) == (1, 8)
    assert [each.start_vaddr for each in section.ascending] == [0x20000, 0x20020]


def test_pcmask_with_a_block_of_no_size() -> None:
    """A damaged section must not make the reader divide by 0."""
    function = RawFunction(rows=ROWS, row_count=3, info=0x10, repeat_size=0)
    assert found(decoded(function), 0x20004) == (0, None)


@pytest.mark.parametrize(
    ("pc", "expected"),
    [
        (0x20000, (0, 0)),
        (0x2000A, (0, 0)),
        (0x2000B, (0, 11)),
        (0x2000F, (0, 11)),
        (0x20010, (0, 0)),
        (0x2001B, (0, 11)),
    ],
)
def test_pcmask_of_version_1(pc: int, expected: tuple[int, int | None]) -> None:
    """Version 1: the last row for which PC & start >= start."""
    rows = b"\x00\x03\x00\x0b\x03\x0b"
    function = RawFunction(0x20000, 0x20, rows, 2, info=0x10)
    assert found(decoded(function, version=1), pc) == expected
