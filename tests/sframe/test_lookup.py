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


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("pc", "expected"),
    [
        (0x1FFFF, None),
        (0x20000, (0, 0)),
        (0x20003, (0, 0)),
        (0x20004, (0, 4)),
        (0x20008, (0, 4)),
        (0x20009, (0, 9)),
        (0x2000F, (0, 9)),
        (0x20010, None),
        (0x2001F, None),
        (0x20020, (1, 8)),
        (0x2002F, (1, 8)),
        (0x20030, (2, 8)),
        (0x20040, None),
        (0, None),
    ],
)
def test_pcinc(version: int, pc: int, expected: tuple[int, int | None] | None) -> None:
    section = decoded(RawFunction(rows=ROWS, row_count=3), RawFunction(0x20020), RawFunction(0x20030), version=version)
    assert found(section, pc) == expected


def test_unsorted_sections() -> None:
    """An object's functions stand in the order of its source."""
    section = decoded(RawFunction(0x20020), RawFunction(0x20000))
    assert found(section, 0x20025) == (0, 8)
    assert found(section, 0x20005) == (1, 8)
    assert [each.start_vaddr for each in section.ascending] == [0x20000, 0x20020]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("pc", "expected"),
    [
        (0x20008, (0, 0)),
        (0x2000B, (0, 0)),
        (0x2000C, (0, 4)),
        (0x20011, (0, 9)),
        (0x20013, (0, 9)),
        (0x20014, (0, 0)),  # the second block; blocks count from the function's start, not from address 0
        (0x20018, (0, 4)),
        (0x20037, (0, 9)),
        (0x20038, None),
    ],
)
def test_pcmask(version: int, pc: int, expected: tuple[int, int | None] | None) -> None:
    """The rows repeat with every block of `rep_size` bytes (here 12)."""
    function = RawFunction(0x20008, 0x30, ROWS, 3, info=0x10, repeat_size=12)
    assert found(decoded(function, version=version), pc) == expected


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
