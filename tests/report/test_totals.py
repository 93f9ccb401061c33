# SPDX-License-Identifier: Apache-2.0
"""Reports add up, whatever they list, and comparisons pair the right files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.report.size.totals import ORDERS, build_comparison, build_report, figures_of, ratio_bins
from tests.support import cfi_asm as asm
from tests.support.sizes import check_report, library, measured, sample_comparison, sample_files

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.report.size.records import SizeComparison, SizeReport


@pytest.fixture(name="report", scope="module")
def _report() -> SizeReport:
    return build_report(sample_files(), version=3, function_count=3)


@pytest.fixture(name="comparison", scope="module")
def _comparison() -> SizeComparison:
    return sample_comparison()


def test_sums(report: SizeReport) -> None:
    check_report(report)
    assert [total.file_count for total in report.totals.versions] == [5, 6, 6]


def test_top_does_not_change_the_sums(report: SizeReport) -> None:
    cut = build_report(sample_files(), version=3, top=2, function_count=3)
    check_report(cut)
    assert (cut.totals, cut.functions, cut.omitted_count) == (report.totals, report.functions, 4)
    assert cut.files == report.files[:2]


@pytest.mark.parametrize("order", ORDERS)
def test_orders(order: str) -> None:
    report = build_report(sample_files(), version=2, order=order)
    keys = [ORDERS[order](figures_of(file, 2)) for file in report.files]
    assert keys == sorted(keys, reverse=True)
    assert order != "name" or [f.name for f in report.files] == sorted(f.name for f in report.files)
    assert order == "name" or keys[0] > 0


def test_functions_of_all_files(report: SizeReport) -> None:
    costs = [function.sframe_size for function in report.functions.costliest]
    assert len(costs) == 3
    assert costs == sorted(costs, reverse=True)
    assert report.functions.described_count == sum(file.functions.described_count for file in report.files)


def test_pairs(comparison: SizeComparison) -> None:
    verdicts = {pair.name: (pair.verdict(3), pair.change(3) > 0) for pair in comparison.pairs}
    assert verdicts["a.so"] == ("grew", True)
    assert verdicts["b.so"] == ("shrank", False)
    assert verdicts["gone.so"] == ("removed", False)
    assert verdicts["new.so"] == ("added", True)
    changes = [abs(pair.change(3)) for pair in comparison.pairs]
    assert changes == sorted(changes, reverse=True)
    old, new = comparison.totals
    change = new.version(3).cfi2sframe.size - old.version(3).cfi2sframe.size
    assert sum(pair.change(3) for pair in comparison.pairs) == change
    assert [failure.name for failure in comparison.failures] == ["new: bad.so", "new: script.o"]


def test_two_files_of_different_names_are_a_pair() -> None:
    comparison = build_comparison([measured("a-1.so", library(2))], [measured("a-2.so", library(2))], version=3)
    (pair,) = comparison.pairs
    assert (pair.name, pair.change(3)) == ("a-2.so", 0)


def test_members_of_the_same_name_stay_apart() -> None:
    twice = [measured("x.a(m.o)", library(1)), measured("x.a(m.o)", library(2))]
    comparison = build_comparison(twice, twice, version=3)
    assert [pair.name for pair in comparison.pairs] == ["x.a(m.o)", "x.a(m.o)#2"]
    assert comparison.totals[0].file_count == 2


def test_the_distribution_counts_every_file(report: SizeReport) -> None:
    bins = ratio_bins(report.files, 3)
    assert [sum(counts) for counts in zip(*(item.counts for item in bins), strict=True)] == [6, 6]
    assert 10 in [item.tenths for item in bins]
    assert ratio_bins([], 3) == []


def test_damaged_and_odd_inputs_are_lines(tmp_path: Path) -> None:
    from cfi2sframe.files import find_sources
    from cfi2sframe.report.size.measure import Request
    from cfi2sframe.report.size.sources import measure_all, split_found

    (tmp_path / "a.so").write_bytes(library(2))
    (tmp_path / "b.so").write_bytes(library(2)[:300])
    (tmp_path / "c.so").write_bytes(asm.elf_file(AMD64.elf_machine, ()))
    sources, failures = split_found(find_sources([str(tmp_path), str(tmp_path / "missing")]))
    for jobs in (1, 2):
        results = [result for measured in measure_all(sources, Request(), jobs) for result in measured.results]
        assert len(results) == 3
        report = build_report([*failures, *results], version=3)
        check_report(report)
        assert len(report.files) == 1
        assert [failure.is_expected for failure in report.failures] == [False, True, False]
