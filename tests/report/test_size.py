# SPDX-License-Identifier: Apache-2.0
"""The sizes of files are right, and they add up, whatever a report lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.cli.size import ORDERS
from cfi2sframe.report.size import SUMMED, add_sizes, comparison_report, human, measure, size_report
from cfi2sframe.report.tables import common_directory
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.report import FUNCTION_SIZE, check_table, library, measured, s390x_library, sample_files, unsayable

#: The columns of the first table that are added up.
COLUMNS = (".sframe", "GNU as+ld")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_size_is_that_of_the_conversion(version: int) -> None:
    conversion = convert(load(library(5)), version=version, level=1)
    file = measure(conversion)
    assert file.sframe_size == len(conversion.data)
    assert (file.record_count, file.row_count, file.function_count) == (5, 15, 5)
    # Rows: sp+8 (3 bytes), sp+16 with FP (4), fp+16 with FP (4), for each function.
    assert file.gnu_size == 28 + 5 * ({1: 17, 2: 20, 3: 21}[version] + 3 + 4 + 4)


def test_gnu_repeats_equal_rows() -> None:
    instructions = (asm.advance(4), asm.def_cfa_offset(8), asm.advance(4), asm.offset(3, 2))
    file = measured("in", linked_file(AMD64, (asm.Fde(cie_of(AMD64), TEXT_VADDR, FUNCTION_SIZE, instructions),)))
    # One row of ours; of GNU's the first begins at 0, the others at the advances.
    assert (file.row_count, file.gnu_size) == (1, 28 + 21 + 3 * 3)


def test_what_the_file_has() -> None:
    section = asm.Section(".sframe", bytes.fromhex("e2de02") + bytes(29), 1)
    data = linked_file(AMD64, (push_fp(AMD64),), more=(section,))
    file, image = measured("in", data), load(data)
    assert file.file_size == len(data)
    assert file.cfi_size == next(image.sections_named(".eh_frame")).size
    assert file.existing_size == 32
    assert "The files have 32 bytes of .sframe today." in size_report([file]).notes


def test_a_file_that_no_version_can_describe() -> None:
    file = measured("in", linked_file(AMD64, (unsayable(TEXT_VADDR),)))
    assert (file.sframe_size, file.record_count, file.left_out_count, file.ratio) == (0, 0, 1, 0)


def test_functions_are_counted_as_coverage_does() -> None:
    from cfi2sframe import account

    for data in (library(2, more=(unsayable(TEXT_VADDR + 0x200),)), s390x_library()):
        coverage = account(convert(load(data)))
        file = measured("in", data)
        assert file.function_count == coverage.function_count
        assert (file.left_out_count, file.in_part_count) == (coverage.left_out_count, coverage.in_part_count)


def test_sums() -> None:
    files = sample_files()
    total = add_sizes(files, "all")
    for name in SUMMED:
        assert getattr(total, name) == sum(getattr(file, name) for file in files)
    assert total.file_count == len(files)
    report = size_report(files)
    check_table(report.tables[0], COLUMNS)
    assert report.tables[0].total is not None
    assert report.tables[0].total[0] == total.sframe_size
    cut = size_report(files, top=3).tables[0]
    check_table(cut, COLUMNS)
    assert cut.total == report.tables[0].total
    assert [row[:4] for row in cut.rows[:3]] == [row[:4] for row in report.tables[0].rows[:3]]
    assert [row[-1] for row in cut.rows[3:]] == ["3 more files (--top all)"]
    one = size_report(files[:1]).tables[0]
    assert (len(one.rows), one.total) == (1, None)


@pytest.mark.parametrize("order", [*ORDERS.values()])
def test_orders(order: str | None) -> None:
    files = [file._replace(file=file.file.rpartition("/")[2]) for file in sample_files()]
    names = [str(row[-1]) for row in size_report(files, order=order).tables[0].rows]
    keys = {file.file: -(getattr(file, order) or 0) if order else 0 for file in files}
    assert names == sorted(keys, key=lambda name: (keys[name], name))


def test_the_headline() -> None:
    report = size_report(sample_files(), level=1)
    assert report.headline.startswith("version 3 at -O1 adds ")
    assert " KiB; GNU as + ld would add " in report.headline
    sizes = {0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1024: "1.00 KiB", 20 << 10: "20.0 KiB", 1 << 20: "1.00 MiB"}
    sizes |= {200 << 10: "200 KiB", 3 << 30: "3.00 GiB"}
    assert {size: human(size) for size in sizes} == sizes


def test_pairs() -> None:
    old = [measured("a.so", library(2)), measured("b.so", library(9)), measured("gone.so", library(1))]
    new = [measured("a.so", library(5)), measured("b.so", library(8)), measured("new.so", library(1))]
    old, new = ([*side, measured("same.so", library(3))] for side in (old, new))
    report = comparison_report(old, new, top=None)
    (table,) = report.tables
    check_table(table, ("change", "old", "new", "CFI + hdr"))
    by_name = {row[-1]: row for row in table.rows}
    assert set(by_name) == {"a.so", "b.so", "gone.so", "new.so", "1 unchanged file"}
    changes = [abs(row[0]) for row in table.rows if isinstance(row[0], int)]
    assert changes == sorted(changes, reverse=True)
    assert (by_name["gone.so"][3], by_name["new.so"][2], by_name["new.so"][1]) == (None, None, None)
    (cut,) = comparison_report(old, new, top=1).tables
    check_table(cut, ("change", "old", "new", "CFI + hdr"))
    assert cut.total == table.total
    assert [row[-1] for row in cut.rows[1:]] == ["3 more changed files", "1 unchanged file"]
    assert report.headline.startswith("version 3 shrinks by 27 bytes (-7.1 %), from ")


def test_two_files_of_different_names_are_a_pair() -> None:
    report = comparison_report([measured("a-1.so", library(2))], [measured("a-2.so", library(2))], top=None)
    assert [file["file"] for file in report.data["files"]] == ["a-2.so"]
    assert report.headline.startswith("version 3 stays at ")


@pytest.mark.property
@given(st.lists(st.lists(st.sampled_from(("a", "ab", "b", "")), min_size=1, max_size=4).map("/".join), min_size=1))
def test_the_common_directory_is_one(names: list[str]) -> None:
    folder = common_directory(names)
    assert all(name.startswith(folder) for name in names)
    assert folder == "" or folder.endswith("/")
    folders = {name.rpartition("/")[0] for name in names}
    # It is the longest: the next part of the names differs, or one of them has no more parts.
    if len(names) > 1 and len(folders) == 1 and "" not in folders:
        assert folder == f"{folders.pop()}/"
