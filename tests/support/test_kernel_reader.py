# SPDX-License-Identifier: Apache-2.0
"""The strict reader is content with what is right, and names each rule that is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kernel_reader import SPREAD, complaints
from tests.support.raw_sframe import RawFunction, RawSection

CODE = [(0x20000, 0x21000)]
SECTION = RawSection()
#: CFA = *(rbp - 8), RA by default, FP = *(rbp + 0), all in one flexible row.
FLEXIBLE = b"\x00\x0a\x33\xf8\x00\x33\x00"


def of(section: RawSection) -> list[str]:
    return complaints(section.assemble(), section.vaddr, CODE)


def function(**fields: Any) -> RawSection:  # noqa: ANN401 - whatever fields a function has
    return RawSection((RawFunction()._replace(**fields),))


@pytest.mark.parametrize(
    "section",
    [
        SECTION,
        SECTION._replace(version=2),
        SECTION._replace(version=2, flags=1),
        SECTION._replace(version=1),
        RawSection((RawFunction(), RawFunction(0x20010), RawFunction(0x20100, 4))),
        RawSection((RawFunction(), RawFunction(0x20010, fre_offset=0))),
        function(rows=b"\x00\x03\x08\x04\x05\x10\xf0", row_count=2),
        function(rows=FLEXIBLE, info2=1),
        function(rows=b"\x00\x00"),
        function(rows=b"\x00\x03\x08\x0b\x03\x10", row_count=2, info=0x10, repeat_size=16, size=0x40),
        RawSection((RawFunction(rows=b"\x00\x83\x00", info=0x20),), abi=2, fixed_ra=0),
        RawSection((RawFunction(rows=b"\x00\x07\x14\x00\xf0"),), order=">", abi=4, fixed_ra=0),
    ],
)
def test_right_sections_pass(section: RawSection) -> None:
    assert of(section) == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (SECTION._replace(magic=0xDEE3), "wrong magic"),
        (SECTION._replace(flags=1), "flags 0x1"),
        (SECTION._replace(flags=4), "flags 0x4"),
        (SECTION._replace(flags=7), "flags 0x7"),
        (SECTION._replace(version=1, flags=5), "flags 0x5"),
        (SECTION._replace(abi=9), "ABI 9"),
        (SECTION._replace(order=">"), "ABI 3 with the other byte order"),
        (SECTION._replace(version=1, order=">", abi=4, fixed_ra=0), "version 1 does not define ABI 4"),
        (SECTION._replace(fixed_fp=-16), "fixed FP offset -16"),
        (SECTION._replace(fixed_ra=0), "fixed RA offset 0"),
        (SECTION._replace(auxiliary=b"12345678"), "an auxiliary header"),
        (SECTION._replace(functions=()), "no functions"),
        (SECTION._replace(fre_count=0), "no rows"),
        (SECTION._replace(fre_count=2), "num_fres is 2, the functions have 1"),
        (SECTION._replace(fde_offset=8), "fdeoff 8"),
        (SECTION._replace(fre_offset=24), "freoff 24"),
        (SECTION._replace(fre_size=7), "the rows end at"),
        (SECTION._replace(tail=b"\0"), "the rows end at"),
        (SECTION._replace(fde_count=2), "freoff 16"),
        (function(start=0x1FFFF), "not in one executable segment"),
        (function(start=0x20FF8), "not in one executable segment"),
        (function(size=0), "no bytes"),
        (RawSection((RawFunction(), RawFunction(0x20008))), "starts before 0x20010"),
        (RawSection((RawFunction(0x20010), RawFunction(0x20000))), "starts before 0x20020"),
        (RawSection((RawFunction(), RawFunction(0x20010, fre_offset=4000))), "no room for its attribute"),
        (function(row_count=0), "no rows"),
        (function(row_count=2), "leaves the rows"),
        (function(rows=b"\x00\x03\x08\x00"), "no function uses the rows' bytes"),
        (function(rows=b"\x00\x05\x08"), "the words of row 0"),
        (function(rows=b"\x01\x03\x08"), "the first row starts at 1"),
        (function(rows=b"\x00\x03\x08\x00\x03\x10", row_count=2), "row 1 starts at 0, the one before it at 0"),
        (function(rows=b"\x00\x03\x08\x10\x03\x10", row_count=2), "a row starts at 16 of 16 bytes"),
        (function(info=3), "FRE type 3"),
        (function(info=0x40), "info byte 0x40"),
        (function(info=0x20), "info byte 0x20"),
        (function(info2=2), "second info byte 0x2"),
        (function(info2=0x20), "second info byte 0x20"),
        (function(info=0x10), "PC type 1 with blocks of 0 bytes"),
        (function(repeat_size=16), "PC type 0 with blocks of 16 bytes"),
        (
            function(rows=b"\x00\x03\x08\x0b\x03\x10", row_count=2, info=0x10, repeat_size=8, size=64),
            "a row starts at 11 of 8 bytes",
        ),
        (function(rows=b"\x00\x63" + bytes(8)), "word size 3"),
        (function(rows=b"\x00\x83\x08"), "a mangled RA"),
        (function(rows=b"\x00\x07\x08\xf0\xf8"), "3 words, 2 have a meaning"),
        (function(rows=b"\x00\x05\x08\x00"), "an offset of 0 from the CFA"),
        (RawSection((RawFunction(rows=b"\x00\x00"),), version=1), "no words"),
        (function(rows=b"\x00\x0b\x33\xf8\x00\x33\x00", info2=1), "a base register bit"),
        (function(rows=b"\x00\x02\x33", info2=1), "a control word without its offset"),
        (function(rows=b"\x00\x04\x37\xf8", info2=1), "control word 0x37"),
        (function(rows=b"\x00\x04\x32\xf8", info2=1), "control word 0x32 has a register"),
        (function(rows=b"\x00\x04\x02\xf8", info2=1), "no base register of the CFA"),
        (function(rows=b"\x00\x06\x33\xf8\x00", info2=1), "a padding with nothing after it"),
        (function(rows=b"\x00\x10\x33\xf8\x02\xf8\x02\xf0\x02\xf0", info2=1), "4 rules"),
        (function(row_count=17, rows=b"\x00\x03\x08" * 17), "17 rows for 16 bytes"),
        # *(r32 - 8), in words of two bytes: 32 << 3 | 2 | 1.
        (function(rows=b"\x00\x24\x03\x01\xf8\xff", info2=1), "names register 32"),
        (RawSection((RawFunction(rows=b"\x00\x05\x14\x00"),), order=">", abi=4, fixed_ra=0), "a padding"),
        (RawSection((RawFunction(rows=b"\x00\x05\x14\x21"),), order=">", abi=4, fixed_ra=0), "names no register"),
    ],
)
def test_each_rule_is_named(section: RawSection, message: str) -> None:
    found = of(section)
    assert any(message in text for text in found), found


TWO_SEGMENTS = [(0x20000, 0x20010), (0x20010, 0x21000)]
BESIDE = RawSection((RawFunction(), RawFunction(0x20010)))
ACROSS = function(start=0x20008)


def test_each_segment_is_registered_by_itself() -> None:
    """Segments that touch one another are still two."""
    data = BESIDE.assemble()
    assert complaints(data, BESIDE.vaddr, [(0x20000, 0x21000)]) == []
    assert complaints(data, BESIDE.vaddr, [*TWO_SEGMENTS, (0x50000, 0x60000)]) == [SPREAD]
    assert complaints(data, BESIDE.vaddr, [(0x20000, 0x21000), (0x50000, 0x60000)]) == []
    (found,) = complaints(ACROSS.assemble(), ACROSS.vaddr, TWO_SEGMENTS)
    assert found.endswith("not in one executable segment")
