# SPDX-License-Identifier: Apache-2.0
"""The account of a conversion, and its report: shares, ratios, sums, and what is missing."""

import json

import pytest

from cfi2sframe import account, convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.report.coverage import Coverage, share
from cfi2sframe.report.coverage_report import add_accounts, coverage_report, headline, missing_sentences
from cfi2sframe.report.tables import render
from tests.support.conversion.sums import check_sums, convert_checked
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file, push_fp
from tests.support.report import check_table

UNSAYABLE = asm.def_cfa_expression(b"\x30")


@pytest.fixture(name="mixed")
def _mixed() -> Coverage:
    """Described functions in default and flexible rows, one left out, one that overlaps, one in part, one damaged."""
    entries = (
        push_fp(AMD64),
        asm.Fde(cie_of(AMD64, UNSAYABLE), TEXT_VADDR + 0x40, 16),
        asm.Fde(cie_of(AMD64, asm.def_cfa_register(3)), TEXT_VADDR + 0x1000, 8),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x1004, 8),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x80, 16, (asm.advance(4), UNSAYABLE)),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0xA0, 16, (b"\x3f",)),
    )
    codes = (
        Code(TEXT_VADDR, 0x100, ".text"),
        Code(TEXT_VADDR + 0x1000, 0x20, ".text.b"),
        Code(TEXT_VADDR + 0x2000, 4, ".fini"),
    )
    return check_sums(convert_checked(load(linked_file(AMD64, entries, codes=codes), "in")))


def test_each_byte_and_function_counts_once(mixed: Coverage) -> None:
    assert (mixed.code_size, mixed.default_size, mixed.flexible_size, mixed.left_out_size) == (0x124, 44, 4, 28)
    assert mixed.without_cfi_size == 0x124 - 48 - 28
    counts = (mixed.described_count, mixed.in_part_count, mixed.left_out_count, mixed.damaged_count)
    assert (mixed.function_count, *counts) == (6, 3, 1, 1, 1)
    assert headline(mixed).endswith(" of 292 bytes of code, and 3 of 6 functions with CFI (1 more in part)")


def test_tables_add_up(mixed: Coverage) -> None:
    code, functions, why, places = coverage_report([mixed]).tables
    check_table(code, ("bytes",))
    check_table(functions, ("functions",))
    check_table(why, ("bytes", "places"))
    assert code.total is not None
    assert (code.total[0], functions.total and functions.total[0]) == (mixed.code_size, mixed.function_count)
    assert why.total is not None
    assert why.total[0] == mixed.left_out_size + mixed.without_cfi_size
    assert why.total[1] == len(places.rows)
    sizes = [row[0] for row in places.rows]
    assert sizes == sorted(sizes, reverse=True, key=lambda size: size or 0)


def test_several_files_add_up(mixed: Coverage) -> None:
    other = account(convert(load(linked_file(AMD64, (push_fp(AMD64),)), "other")))
    report = coverage_report([mixed, other])
    summed = ("bytes of code", "without CFI", "left out", "functions", "not in full")
    check_table(report.tables[0], summed)
    check_table(report.tables[1], ("bytes", "places"))
    assert [row[-1] for row in report.tables[0].rows] == ["in", "other"]
    total = add_accounts([mixed, other])
    assert report.headline == f"2 files: {headline(total)}"
    assert total.function_count == mixed.function_count + 1


def test_the_largest_places(mixed: Coverage) -> None:
    report = coverage_report([mixed], top=2)
    assert [row[0] for row in report.tables[-1].rows] == [0x70, 0x30]
    count = sum(item.place_count for item in mixed.missing_sums)
    assert report.notes[0] == f"{count - 2} more not shown; use --top all."
    holes = [row for row in coverage_report([mixed]).tables[-1].rows if row[3] == "in part"]
    assert holes == [[12, f"0x{TEXT_VADDR + 0x84:x}", ".text", "in part", "CFA is an expression (lit0)"]]


def test_sentences(mixed: Coverage) -> None:
    damaged, left_out, in_part = missing_sentences(mixed)
    assert damaged.endswith("; the FDE is left out")
    assert left_out == f"function at 0x{TEXT_VADDR + 0x40:x} left out: CFA is an expression (lit0)"
    where = f"CFA is an expression (lit0) at 0x{TEXT_VADDR + 0x84:x}"
    assert in_part == f"function at 0x{TEXT_VADDR + 0x80:x}: 12 of 16 bytes left out: {where}"


def test_percentages(mixed: Coverage) -> None:
    """All is 100 only if it is all, and nothing 0 only if it is nothing."""
    assert [share(*pair) for pair in ((1, 1), (99999, 100000), (1, 100000), (0, 1), (0, 0))] == [
        *("100.00 %", "99.99 %", "<0.01 %", "0.00 %", "")
    ]
    assert mixed._replace(code_size=0).code_percent == 100
    assert mixed._replace(cfi_size=60, eh_frame_hdr_size=40, sframe_size=80).ratio == pytest.approx(0.8)
    assert mixed._replace(cfi_size=0, eh_frame_hdr_size=0).ratio is None


def test_data_repeats_the_record(mixed: Coverage) -> None:
    data = json.loads(render(coverage_report([mixed]), "json"))
    assert data["schema"] == SCHEMA_VERSION
    (file,) = data["files"]
    for name, value in mixed._asdict().items():
        if isinstance(value, int | str):
            assert file[name] == value
    (item,) = [each for each in file["missing"] if each["kind"] == "left out"]
    assert (item["reason"], item["message"]) == ("CFA_EXPRESSION", "CFA is an expression")
    assert item["address"] == item["function_address"] == TEXT_VADDR + 0x40
