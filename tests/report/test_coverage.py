# SPDX-License-Identifier: Apache-2.0
"""Accounts as records and as text: shares, ratios, and bytes by section."""

from __future__ import annotations

import json

import pytest

from cfi2sframe import account, convert, load
from cfi2sframe.arch import AMD64
from cfi2sframe.render.coverage_json import coverage_data
from cfi2sframe.render.coverage_text import coverage_lines
from cfi2sframe.render.text import summary
from cfi2sframe.report.code_bytes import ByteCounts
from cfi2sframe.report.coverage import FunctionCounts, Sizes
from cfi2sframe.sframe.lookup_cost import LookupCost
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, Code, cie_of, linked_file, push_fp
from tests.support.sums import check_sums, convert_checked


def functions(**counts: int) -> FunctionCounts:
    return FunctionCounts(*(0,) * len(FunctionCounts._fields))._replace(**counts)


@pytest.mark.parametrize(
    ("counts", "percent"),
    [
        ({}, 100.0),
        ({"default": 3, "flexible": 1}, 100.0),
        ({"default": 3, "left_out": 1}, 75.0),
        ({"flexible": 1, "damaged": 3}, 25.0),
        ({"default": 1, "dropped": 9, "replaced": 9}, 100.0),
        ({"left_out": 1}, 0.0),
    ],
)
def test_percent(counts: dict[str, int], percent: float) -> None:
    """Only functions with code of their own count: neither dropped FDEs nor those of stubs."""
    assert functions(**counts).percent == pytest.approx(percent)


def test_ratio() -> None:
    assert Sizes(cfi=60, eh_frame_hdr=40, sframe=80).ratio == pytest.approx(0.8)
    assert Sizes(cfi=0, eh_frame_hdr=0, sframe=80).ratio is None


def test_bytes_by_section() -> None:
    """Each executable byte counts once, in its section."""
    cie, unsayable = cie_of(AMD64), cie_of(AMD64, asm.def_cfa_expression(b"\x30"))
    entries = (
        push_fp(AMD64),
        asm.Fde(unsayable, TEXT_VADDR + 0x40, 16),
        asm.Fde(cie_of(AMD64, asm.def_cfa_register(3)), TEXT_VADDR + 0x1000, 8),
        asm.Fde(cie, TEXT_VADDR + 0x1004, 8),
    )
    codes = (
        Code(TEXT_VADDR, 0x100, ".text"),
        Code(TEXT_VADDR + 0x1000, 0x20, ".text.b"),
        Code(TEXT_VADDR + 0x2000, 4, ".fini"),
    )
    coverage = check_sums(convert_checked(load(linked_file(AMD64, entries, codes=codes), "in")))
    assert [tuple(section) for section in coverage.sections] == [
        (".text", ByteCounts(total=0x100, default=32, flexible=0, stubs=0, left_out=16, uncovered=0x100 - 48)),
        (".text.b", ByteCounts(total=0x20, default=8, flexible=4, stubs=0, left_out=0, uncovered=20)),
        (".fini", ByteCounts(total=4, default=0, flexible=0, stubs=0, left_out=0, uncovered=4)),
    ]
    assert coverage.bytes == ByteCounts(total=0x124, default=40, flexible=4, left_out=16, uncovered=0x124 - 60)
    assert coverage.functions.overlapping == 1
    assert "overlapping" in "\n".join(coverage_lines(coverage))
    assert summary(coverage).startswith("SFrame version 3: 3 of 4 functions, 44 of 292 executable bytes, ")


def test_data_repeats_the_record() -> None:
    """The JSON and the text come from one record."""
    entries = (push_fp(AMD64), asm.Fde(cie_of(AMD64, asm.undefined(6)), TEXT_VADDR + 0x40, 16))
    coverage = check_sums(convert_checked(load(linked_file(AMD64, entries), "in")))
    data = json.loads(json.dumps(coverage_data(coverage)))
    assert data["reasons"] == {"FP is undefined": 1}
    (item,) = data["left_out"]
    assert (item["reason"], item["message"], item["address"]) == ("FP_UNDEFINED", "FP is undefined", TEXT_VADDR + 0x40)
    assert data["bytes"] == {**coverage.bytes._asdict(), "described": 32, "percent": 100 * 32 / 4096}
    assert data["functions"]["percent"] == 50
    assert data["rows"] == coverage.row_count == 3
    assert data["lookup"] == {**coverage.lookup_cost._asdict(), "mean_rows": (4 * 1 + 4 * 2 + 24 * 3) / 32}
    line = "rows a look-up walks 2.6 on average over the code, 3 at most; 1 steps in the function table"
    assert line in [" ".join(line.split()) for line in coverage_lines(coverage)]
    assert summary(coverage).endswith("; a look-up walks 2.6 rows on average, 3 at most")


def test_no_functions_cost_nothing() -> None:
    coverage = account(convert(load(linked_file(AMD64, (asm.Fde(cie_of(AMD64, asm.undefined(6)), TEXT_VADDR, 16),)))))
    assert coverage.lookup_cost == LookupCost()
    assert "look-up" not in summary(coverage) + "".join(coverage_lines(coverage))
