# SPDX-License-Identifier: Apache-2.0
"""Small files to measure, and the sums that hold in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.arch import AARCH64_LE, AMD64, S390X
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import MAKERS, Failure, FileSizes, SizeReport
from cfi2sframe.report.size.totals import add_up, build_comparison
from cfi2sframe.sframe.constants import FDE_ATTRIBUTE_SIZE, FDE_SIZE, HEADER_SIZE
from cfi2sframe.sframe.lookup_cost import add_costs
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, cie_of, linked_file, object_file, push_fp

if TYPE_CHECKING:
    from cfi2sframe.report.size.records import SectionSizes, SizeComparison

FUNCTION_SIZE = 32


def library(function_count: int, *, more: tuple[asm.Entry, ...] = ()) -> bytes:
    """A library of AMD64 with that many equal functions."""
    functions = [push_fp(AMD64, TEXT_VADDR + n * FUNCTION_SIZE, FUNCTION_SIZE) for n in range(function_count)]
    symbols = tuple(
        asm.Symbol(f"f{n}", TEXT_VADDR + n * FUNCTION_SIZE, FUNCTION_SIZE, 0x12, ".text") for n in range(function_count)
    )
    return linked_file(AMD64, (*functions, *more), symbols=symbols)


def unsayable(start: int) -> asm.Fde:
    """A function whose CFA is an expression that no version can express."""
    return asm.Fde(cie_of(AMD64), start, FUNCTION_SIZE, (asm.def_cfa_expression(bytes((0x77, 40, 0x06, 0x23, 8))),))


def s390x_library() -> bytes:
    """A library that version 1 does not define."""
    return linked_file(S390X, (push_fp(S390X),))


def aarch64_object() -> bytes:
    """A relocatable object."""
    return object_file(AARCH64_LE, {".text": (push_fp(AARCH64_LE, 0),)})


FAILURES = [Failure("bad.so", "truncated"), Failure("script.o", "no call frame information", is_expected=True)]


def measured(name: str, data: bytes) -> FileSizes:
    """The sizes of a file with these bytes, with three functions in each list."""
    return measure(load(data, name), Request(function_count=3))


def sample_files() -> list[FileSizes | Failure]:
    """Six files, one of them without a section in version 1 and one with an odd name, and two failures."""
    return [
        measured("lib/small.so", library(2)),
        measured("lib/large.so", library(40)),
        measured("lib/<odd> & \x1b[31mred|.so", library(3, more=(unsayable(TEXT_VADDR + 0x200),))),
        measured("lib/s390x.so", s390x_library()),
        measured("a.o", aarch64_object()),
        measured("nothing.so", linked_file(AMD64, (unsayable(TEXT_VADDR),))),
        *FAILURES,
    ]


def sample_comparison() -> SizeComparison:
    """A comparison in which files grew, shrank, were added and were removed."""
    old = [measured("a.so", library(2)), measured("b.so", library(9)), measured("gone.so", library(1))]
    new: list[FileSizes | Failure] = [
        measured("a.so", library(5)),
        measured("b.so", library(8)),
        measured("new.so", library(1)),
        *FAILURES,
    ]
    return build_comparison(old, new, version=3)


def check_section(section: SectionSizes, version: int) -> None:
    """A section is the sum of its parts, and each histogram adds up to its total."""
    parts = section.parts
    assert section.size == sum(parts)
    assert section.code_count >= 0
    assert min(parts) >= 0
    assert parts.rows == sum(size * count for size, count in section.row_sizes.items())
    assert section.stored_row_count == sum(section.row_sizes.values()) <= section.row_count
    assert sum(section.rows_per_function.values()) == section.function_count
    assert parts.function_table == section.function_count * FDE_SIZE[version]
    assert parts.attributes % FDE_ATTRIBUTE_SIZE == 0
    assert (parts.attributes > 0) == (version == 3 and section.function_count > 0)
    assert parts.header % HEADER_SIZE == 0
    cost = section.lookup_cost
    assert cost.function_count == section.function_count
    assert cost.code_size <= cost.walked_count <= cost.code_size * cost.max_rows
    assert cost.search_steps <= cost.function_count.bit_length()


def check_file(file: FileSizes) -> None:
    """Every section of a file adds up, and so do the reasons for functions left out."""
    for version in file.versions:
        assert (version.cfi2sframe is None) == (version.gnu is None) == bool(version.refusal)
        for maker in MAKERS:
            section = version.section(maker)
            if section is not None:
                check_section(section, version.version)
        if version.cfi2sframe is not None:
            assert sum(version.left_out.values()) == version.cfi2sframe.left_out_count
    assert file.sizes.base == file.sizes.cfi + file.sizes.eh_frame_hdr


def check_report(report: SizeReport) -> None:
    """Every field of a report is the sum over its files, listed or not."""
    for file in report.files:
        check_file(file)
    assert report.totals.file_count == len(report.files) + report.omitted_count
    for total in report.totals.versions:
        for maker in MAKERS:
            check_section(total.section(maker), total.version)
        assert sum(total.left_out.values()) == total.cfi2sframe.left_out_count
    if report.omitted_count:
        return
    assert report.totals == add_up(report.files)
    if report.folders is not None:
        folders = report.folders.groups
        assert sum(folder.larger_count for folder in folders) == report.functions.larger_count
        for field in range(len(report.totals.sizes)):
            assert sum(folder.totals.sizes[field] for folder in folders) == report.totals.sizes[field]
        for total in report.totals.versions:
            parts = [folder.totals.version(total.version) for folder in folders]
            assert sum(part.file_count for part in parts) == total.file_count
            assert sum(part.cfi2sframe.left_out_count for part in parts) == total.cfi2sframe.left_out_count
            for maker in MAKERS:
                assert sum(part.section(maker).size for part in parts) == total.section(maker).size
    for total in report.totals.versions:
        having = [f for f in report.files if f.section(total.version) is not None]
        assert total.file_count == len(having)
        assert total.sizes.base == sum(f.sizes.base for f in having)
        for maker in MAKERS:
            sections = [section for f in having if (section := f.section(total.version, maker)) is not None]
            summed = total.section(maker)
            assert summed.size == sum(section.size for section in sections)
            assert summed.row_count == sum(section.row_count for section in sections)
            assert summed.function_count == sum(section.function_count for section in sections)
            assert summed.code_count == sum(section.code_count for section in sections)
            assert summed.left_out_count == sum(section.left_out_count for section in sections)
            assert summed.lookup_cost == add_costs(section.lookup_cost for section in sections)
