# SPDX-License-Identifier: Apache-2.0
"""The sizes of one file: they are right, and they add up."""

from __future__ import annotations

import pytest

from cfi2sframe import convert, load
from cfi2sframe.arch import AMD64
from cfi2sframe.errors import ElfError
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import MAKERS
from cfi2sframe.report.size.row_classes import ROWS_CLASSES, rows_class
from cfi2sframe.sframe.lookup_cost import LookupCost
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.sizes import FUNCTION_SIZE, aarch64_object, check_file, library, s390x_library, unsayable


def test_written_size_is_that_of_the_conversion() -> None:
    image = load(library(5))
    sizes = measure(image, Request(level=1))
    check_file(sizes)
    for version in (1, 2, 3):
        section = sizes.section(version)
        assert section is not None
        assert section.size == len(convert(image, version=version, level=1).data)
        assert (section.function_count, section.default_count, section.row_count) == (5, 5, 15)


def test_gnu_lays_every_function_out() -> None:
    sizes = measure(load(library(5)))
    # Rows: sp+8 (3 bytes), sp+16 with FP (4), fp+16 with FP (4), for each function.
    for version, table in ((1, 17), (2, 20), (3, 21)):
        section = sizes.section(version, "gnu")
        assert section is not None
        assert section.size == 28 + 5 * (table + 3 + 4 + 4)
        assert section.row_sizes == {3: 5, 4: 10}
        assert section.rows_per_function == {"3": 5}


def test_the_cost_of_look_ups() -> None:
    """Rows begin at 0, 4 and 8 of 32 bytes, whoever lays them out."""
    sizes = measure(load(library(5)), Request(level=1))
    for version in (1, 2, 3):
        for maker in MAKERS:
            section = sizes.section(version, maker)
            assert section is not None
            assert section.lookup_cost == LookupCost(5 * 32, 5 * (4 * 1 + 4 * 2 + 24 * 3), 3, 5, 3)


def test_gnu_repeats_equal_rows() -> None:
    instructions = (asm.advance(4), asm.def_cfa_offset(8), asm.advance(4), asm.offset(3, 2))
    fde = asm.Fde(cie_of(AMD64), TEXT_VADDR, FUNCTION_SIZE, instructions)
    sizes = measure(load(linked_file(AMD64, (fde,))))
    ours, gnu = sizes.section(3), sizes.section(3, "gnu")
    assert ours is not None
    assert gnu is not None
    assert (ours.row_count, gnu.row_count) == (1, 3)
    assert ours.lookup_cost == LookupCost(32, 32, 1, 1, 1)
    # The first of GNU's rows begins at 0, the others at the advances to 4 and to 8.
    assert gnu.lookup_cost == LookupCost(32, 4 * 1 + 4 * 2 + 24 * 3, 3, 1, 1)
    check_file(sizes)


def test_what_the_file_has() -> None:
    data = linked_file(AMD64, (push_fp(AMD64),), more=(asm.Section(".sframe", bytes.fromhex("e2de02") + bytes(29), 1),))
    sizes = measure(load(data))
    image = load(data)
    assert sizes.sizes.file == len(data)
    assert sizes.sizes.cfi == sizes.sizes.eh_frame == next(image.sections_named(".eh_frame")).size
    assert (sizes.sizes.sframe, sizes.sframe_version) == (32, 2)
    assert (sizes.source, sizes.kind, sizes.arch) == (".eh_frame", "linked", "AMD64")


def test_something_else_named_sframe_has_no_version() -> None:
    data = linked_file(AMD64, (push_fp(AMD64),), more=(asm.Section(".sframe", bytes(40), 1),))
    sizes = measure(load(data))
    assert (sizes.sizes.sframe, sizes.sframe_version) == (40, None)


def test_left_out_by_reason() -> None:
    sizes = measure(load(library(2, more=(unsayable(TEXT_VADDR + 0x200),))))
    check_file(sizes)
    for version in sizes.versions:
        assert version.left_out == {"CFA is an expression": 1}
        assert version.gnu is not None
        assert version.gnu.left_out_count == 1


def test_a_file_that_no_version_can_describe() -> None:
    sizes = measure(load(linked_file(AMD64, (unsayable(TEXT_VADDR),))))
    check_file(sizes)
    section = sizes.section(3)
    assert section is not None
    assert (section.size, section.function_count, section.left_out_count) == (0, 0, 1)
    assert sizes.ratio(3) == 0


def test_a_version_that_does_not_define_the_abi() -> None:
    sizes = measure(load(s390x_library()))
    check_file(sizes)
    assert sizes.section(1) is None
    assert sizes.ratio(1) is None
    assert "version 1 does not define s390x" in sizes.version(1).refusal
    assert sizes.section(2) is not None


def test_an_object() -> None:
    sizes = measure(load(aarch64_object()))
    check_file(sizes)
    assert sizes.kind == "object"


def test_without_cfi() -> None:
    with pytest.raises(ElfError, match="no call frame information"):
        measure(load(asm.elf_file(AMD64.elf_machine, (asm.Section(".text", b"\xc3", 1, 6, align=16),))))


def test_functions_by_cost() -> None:
    rows = tuple(step for n in range(20) for step in (asm.advance(1), asm.def_cfa_offset(16 + 8 * (n % 2))))
    long = asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x200, FUNCTION_SIZE, rows)
    image = load(library(3, more=(long,)), "name")
    functions = measure(image, Request(level=1, function_count=2, function_version=2)).functions
    assert functions.described_count == 4
    first, second = functions.costliest
    # 20 bytes of record, 21 rows of three.
    assert (first.address, first.sframe_size, first.code_size) == (TEXT_VADDR + 0x200, 20 + 21 * 3, FUNCTION_SIZE)
    assert (second.name, second.sframe_size, second.file) == ("f0", 20 + 11, "name")
    # 31 bytes of SFrame against an FDE of 28, three times, and the long one.
    assert functions.larger_count == 4
    assert [f.excess for f in functions.larger] == [first.excess, second.excess]
    assert [f.excess for f in functions.larger] == sorted((f.excess for f in functions.larger), reverse=True)
    section = next(image.sections_named(".eh_frame"))
    data = image.section_bytes(section)
    lengths = set()
    position = 0
    while int.from_bytes(data[position : position + 4], "little"):
        length = 4 + int.from_bytes(data[position : position + 4], "little")
        lengths.add(length)
        position += length
    assert first.cfi_size in lengths


@pytest.mark.parametrize(
    ("rows", "name"),
    [(0, "0"), (4, "4"), (5, "5-6"), (6, "5-6"), (7, "7-8"), (64, "33-64"), (65, "65+"), (9999, "65+")],
)
def test_classes_of_row_counts(rows: int, name: str) -> None:
    assert rows_class(rows) == name
    assert name in ROWS_CLASSES
