# SPDX-License-Identifier: Apache-2.0
"""The first sentence of a size report, which has the answer, and the sentences about what it does not count."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cfi2sframe.printable import printable
from cfi2sframe.report.size.records import DEFAULT_LEVEL, SizeReport, by_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.report.size.records import Failure, SizeComparison

_UNITS = ("bytes", "KiB", "MiB", "GiB")


def human(size: int) -> str:
    """Return a size in the unit that needs few digits."""
    value = float(abs(size))
    unit = next((unit for n, unit in enumerate(_UNITS) if value / 1024**n < 1000), _UNITS[-1])
    if unit == "bytes":
        return f"{size:,} {'byte' if abs(size) == 1 else 'bytes'}"
    value /= 1024 ** _UNITS.index(unit)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{'-' * (size < 0)}{value:,.{digits}f} {unit}"


def report_headline(report: SizeReport) -> str:
    """Return what the version costs, in one sentence without a full stop."""
    total = report.totals.version(report.version)
    if not report.totals.file_count:
        return "no file was measured"
    if not total.file_count:
        return f"version {report.version} does not define the ABI of these files"
    level = "" if report.level == DEFAULT_LEVEL else f" at -O{report.level}"
    share = total.growth_percent
    percent = "" if share is None else f" ({share:.1f} %)"
    adds = f"version {report.version}{level} adds {human(total.cfi2sframe.size)}{percent} to {human(total.sizes.file)}"
    return f"{adds}; GNU as + ld would add {human(total.gnu.size)}"


def report_remarks(report: SizeReport) -> Iterator[str]:
    """Yield what a reader of the headline has to know besides, as full sentences."""
    totals = report.totals
    total = totals.version(report.version)
    if total.file_count < totals.file_count:
        yield f"Version {report.version} does not define the ABI of {_files(totals.file_count - total.file_count)}."
    left_out = total.cfi2sframe.left_out_count
    if left_out or total.in_parts_count:
        counts = [f"{left_out:,} left out"] * bool(left_out)
        counts += [f"{total.in_parts_count:,} described in part"] * bool(total.in_parts_count)
        yield f"Functions: {', '.join(counts)}."
    if totals.sizes.sframe:
        yield f"The files have {human(totals.sizes.sframe)} of .sframe today."
    yield from failure_remarks(report.failures)


def failure_remarks(failures: Sequence[Failure]) -> Iterator[str]:
    """Yield the number of files that were skipped, with the reasons, and of those that could not be measured."""
    skipped = by_count(Counter(failure.reason for failure in failures if failure.is_expected))
    if skipped:
        reasons = [printable(reason) for reason in skipped]
        if len(skipped) > 1:
            reasons = [f"{count:,}: {reason}" for reason, count in zip(reasons, skipped.values(), strict=True)]
        yield f"Skipped: {_files(sum(skipped.values()))} ({'; '.join(reasons)})."
    failed = sum(not failure.is_expected for failure in failures)
    if failed:
        yield f"Not measured: {_files(failed)}."


def comparison_headline(comparison: SizeComparison) -> str:
    """Return what has changed, in one sentence without a full stop."""
    version = comparison.version
    change = comparison.section_change(version, "cfi2sframe")
    base = comparison.base
    level = "" if comparison.level == DEFAULT_LEVEL else f" at -O{comparison.level}"
    name = f"version {version}{level}"
    if not change.difference:
        return f"{name} stays at {human(change.new)}; the CFI {_grew(base.difference)}"
    verb = "grows" if change.difference > 0 else "shrinks"
    percent = "" if change.percent is None else f" ({change.percent:+.1f} %)"
    what = f"{name} {verb} by {human(abs(change.difference))}{percent}, from {human(change.old)} to {human(change.new)}"
    return f"{what}; the CFI {_grew(base.difference)}"


def _grew(difference: int) -> str:
    if not difference:
        return "stays the same"
    return f"{'grows' if difference > 0 else 'shrinks'} by {human(abs(difference))}"


def _files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def headline(report: SizeReport | SizeComparison) -> str:
    """Return the headline of either kind of report."""
    return report_headline(report) if isinstance(report, SizeReport) else comparison_headline(report)


def remarks(report: SizeReport | SizeComparison) -> Iterator[str]:
    """Yield the remarks of either kind of report."""
    return report_remarks(report) if isinstance(report, SizeReport) else failure_remarks(report.failures)


def sentence(text: str) -> str:
    """Return a headline as a sentence of prose."""
    return f"{text[:1].upper()}{text[1:]}."
