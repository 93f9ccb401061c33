#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure whole installations and print their sums side by side, as in the table of docs/lab/measurements.md.

size_table.py [--jobs N] [--split] [--json FILE] NAME=PATH[,PATH...]...

Each NAME is a column; its paths are folders or files. The report is Markdown on standard output; files that cannot be
measured are named on standard error, unless they have nothing to measure. Symbolic links are not followed, and a file
with several hard links counts once.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.cli.progress import with_progress
from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.files import Unusable, find_sources, open_source
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.render.markdown import markdown_table
from cfi2sframe.report.size.measure import Request
from cfi2sframe.report.size.records import MAKERS, Failure, FileSizes, quotient
from cfi2sframe.report.size.sources import Measured, measure_source, split_found
from cfi2sframe.report.size.tables import MAKER_NAMES, Column, Table
from cfi2sframe.report.size.totals import build_report
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, VERSIONS
from cfi2sframe.sframe.lookup_cost import LookupCost, add_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cfi2sframe.conversion import Level
    from cfi2sframe.files import Source
    from cfi2sframe.report.size.records import Maker, SizeReport, VersionTotal

_MIB = 1 << 20
#: The name of the rows with what look-ups cost: the mean, and in brackets the most.
ROWS_WALKED = "rows walked for a look-up"
#: After sections of this size (bytes) reference cycles are collected, as `measure_source` does after large files.
_COLLECT_FROM = 1 << 18


#: The levels that cut and join functions.
LEVELS: tuple[Level, ...] = (2,)


class Split(NamedTuple):
    """The sections of one of `LEVELS`: bytes, and what a look-up costs."""

    size: int
    lookup_cost: LookupCost


class Task(NamedTuple):
    """What a process measured of a source.

    `splits` are version 3 at each of `LEVELS`, empty where that was not asked for; `cpu_seconds` what everything else
    cost, `split_cpu_seconds` what these cost; `peak_size` the largest resident set of the worker so far, in bytes.
    """

    measured: Measured
    splits: tuple[Split, ...]
    cpu_seconds: float
    split_cpu_seconds: float
    peak_size: int


class Cost(NamedTuple):
    """The cost of a column: seconds of wall clock, of CPU without and for `LEVELS`, bytes of the largest process."""

    wall_seconds: float
    cpu_seconds: float
    split_cpu_seconds: float
    peak_size: int


class Installation(NamedTuple):
    """A column. `splits` are the sums at each of `LEVELS`, empty where that was not asked for."""

    report: SizeReport
    splits: tuple[Split, ...]
    cost: Cost

    def larger_count(self, version: int, maker: Maker) -> int:
        """Return how many files' sections are larger than their CFI with its search table."""
        return sum((file.ratio(version, maker) or 0) > 1 for file in self.report.files)


# Measuring


def measure_task(source: Source, *, with_split: bool) -> Task:
    """Measure a source in every version, and in version 3 at each of `LEVELS`."""
    start = time.process_time()
    measured = measure_source(source, Request())
    middle = time.process_time()
    # A source that cannot be measured is a failure already; converting it would only fail again.
    has_sizes = any(isinstance(result, FileSizes) for result in measured.results)
    splits = tuple(_split(source, level) for level in LEVELS) if with_split and has_sizes else ()
    if any(split.size >= _COLLECT_FROM for split in splits):
        gc.collect()
    peak_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Task(measured, splits, middle - start, time.process_time() - middle, peak_size)


def _split(source: Source, level: Level) -> Split:
    size, costs = 0, []
    for image in open_source(source):
        if isinstance(image, Unusable):
            continue
        try:
            conversion = convert_image(image, Options(version=SFRAME_VERSION_3, level=level))
        except Cfi2SFrameError:
            continue
        size += len(conversion.data)
        costs.append(conversion.lookup_cost)
    return Split(size, add_costs(costs))


def add_splits(parts: Iterable[Split]) -> Split:
    """Return the sum of sections of one level."""
    every = tuple(parts)
    return Split(sum(part.size for part in every), add_costs(part.lookup_cost for part in every))


def run_tasks(sources: Sequence[Source], jobs: int, *, with_split: bool) -> Iterator[Task]:
    """Measure sources, several at once with the largest first; a process that dies is a failure of its source."""
    with results_of(partial(measure_task, with_split=with_split), sources, size_of, count=jobs) as results:
        for number, result in results:
            if isinstance(result, Lost):
                failure = Failure(sources[number].name, result.reason)
                yield Task(Measured(sources[number], (failure,)), (), 0.0, 0.0, 0)
            else:
                yield result


def size_of(source: Source) -> int:
    """Return the bytes of a source."""
    return source.size


def measure_installation(roots: list[str], jobs: int, *, with_split: bool) -> Installation:
    """Measure everything under the roots."""
    start = time.monotonic()
    sources, failures = split_found(find_sources(roots))
    tasks: list[Task] = []

    def measured() -> Iterator[Measured]:
        for task in run_tasks(sources, jobs, with_split=with_split):
            tasks.append(task)
            yield task.measured

    byte_count = sum(source.size for source in sources)
    shown = with_progress(measured(), lambda done: done.source.size, len(sources), byte_count)
    results = [result for _, results in shown for result in results]
    cost = Cost(
        time.monotonic() - start,
        sum(task.cpu_seconds for task in tasks),
        sum(task.split_cpu_seconds for task in tasks),
        max((task.peak_size for task in tasks), default=0),
    )
    splits: tuple[Split, ...] = ()
    if with_split:
        columns = [task.splits for task in tasks if task.splits]
        splits = tuple(add_splits(column[number] for column in columns) for number in range(len(LEVELS)))
    return Installation(build_report([*failures, *results], version=SFRAME_VERSION_3), splits, cost)


# Showing


def summary_table(installations: dict[str, Installation]) -> Table:
    """Return the sums of all installations, one per column."""
    every = list(installations.values())
    rows = list(_base_rows(every))
    for version in VERSIONS:
        rows += _version_rows(every, version)
    if any(i.splits for i in every):
        for number, level in enumerate(LEVELS):
            rows += _split_rows(every, number, level)
    rows.append(_row("CPU time of versions 1 to 3", every, lambda i: _minutes(i.cost.cpu_seconds)))
    if any(i.splits for i in every):
        rows.append(_row("CPU time of -O2", every, lambda i: _minutes(i.cost.split_cpu_seconds)))
    rows.append(_row("wall clock", every, lambda i: _minutes(i.cost.wall_seconds)))
    rows.append(_row("peak memory of a process", every, lambda i: f"{i.cost.peak_size / _MIB:,.0f} MiB"))
    return Table("Sizes", (Column("", "text"), *(Column(name) for name in installations)), tuple(rows))


def _base_rows(every: list[Installation]) -> Iterator[tuple[str, ...]]:
    yield _row("ELF files with CFI", every, lambda i: f"{i.report.totals.file_count:,}")
    yield _row("functions (FDEs)", every, lambda i: f"{i.report.totals.fde_count:,}")
    yield _row(".text", every, lambda i: _size(i.report.totals.sizes.text))
    yield _row(".eh_frame", every, lambda i: _size(i.report.totals.sizes.cfi))
    yield _row(".eh_frame_hdr", every, lambda i: _size(i.report.totals.sizes.eh_frame_hdr))


def _version_rows(every: list[Installation], version: int) -> Iterator[tuple[str, ...]]:
    yield _row(f"version {version}: left out", every, lambda i: _left_out(_total(i, version)))
    for maker in MAKERS:
        yield from _maker_rows(every, version, maker)


def _maker_rows(every: list[Installation], version: int, maker: Maker) -> Iterator[tuple[str, ...]]:
    name = f"version {version} by {MAKER_NAMES[maker]}"
    yield _row(name, every, lambda i: _layout(_total(i, version), maker))
    yield _row("files where it is larger than its CFI", every, lambda i: _larger(i, version, maker))
    yield _row(ROWS_WALKED, every, lambda i: _walked(_total(i, version).section(maker).lookup_cost))


def _split_rows(every: list[Installation], number: int, level: Level) -> Iterator[tuple[str, ...]]:
    name = f"version {SFRAME_VERSION_3} by {MAKER_NAMES['cfi2sframe']} -O{level}"
    yield _row(name, every, lambda i: _split_cell(i, number))
    yield _row(ROWS_WALKED, every, lambda i: _walked(i.splits[number].lookup_cost) if i.splits else "")


def _row(name: str, every: list[Installation], cell: Callable[[Installation], str]) -> tuple[str, ...]:
    return (name, *(cell(installation) for installation in every))


def _total(installation: Installation, version: int) -> VersionTotal:
    return installation.report.totals.version(version)


def _size(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _left_out(total: VersionTotal) -> str:
    if not total.file_count:
        return "not defined"
    return f"{total.cfi2sframe.left_out_count:,} ({total.left_out_percent or 0:.3f} %)"


def _layout(total: VersionTotal, maker: Maker) -> str:
    if not total.file_count:
        return ""
    return f"{_size(total.section(maker).size)} ({total.ratio(maker) or 0:.2f})"


def _larger(installation: Installation, version: int, maker: Maker) -> str:
    if not _total(installation, version).file_count:
        return ""
    return f"{installation.larger_count(version, maker):,}"


def _walked(cost: LookupCost) -> str:
    return f"{cost.mean_rows:.1f} ({cost.max_rows:,})" if cost.code_size else ""


def _split_cell(installation: Installation, number: int) -> str:
    if not installation.splits:
        return ""
    size = installation.splits[number].size
    ratio = quotient(size, _total(installation, SFRAME_VERSION_3).sizes.base)
    return f"{_size(size)} ({ratio or 0:.2f})"


def lines_of(installations: dict[str, Installation]) -> Iterator[str]:
    """Yield the report."""
    yield from markdown_table(summary_table(installations))
    yield ""
    yield (
        "In brackets: the share of functions, the ratio to `.eh_frame` + `.eh_frame_hdr`, and the most rows of a "
        "look-up; the mean is over all bytes of code."
    )


def reasons_of(installations: dict[str, Installation]) -> dict[str, object]:
    """Return what was left out and what could not be measured, by column, for JSON."""
    return {
        name: {
            "left_out": {str(total.version): total.left_out for total in installation.report.totals.versions},
            "failures": [failure._asdict() for failure in installation.report.failures],
            "cost": installation.cost._asdict(),
        }
        for name, installation in installations.items()
    }


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", metavar="NAME=PATH[,PATH...]", nargs="+")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--split", action="store_true", help="also version 3 at -O2, the slowest")
    parser.add_argument("--json", metavar="FILE", help="write reasons, unusable files and costs here")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs needs a number from 1")
    installations = {}
    for column in arguments.columns:
        name, _, paths = column.partition("=")
        if not paths:
            parser.error(f"{column!r} is not NAME=PATH")
        roots = [path for path in paths.split(",") if os.path.exists(path)]
        if not roots:
            print(f"size_table: {paths} is not here; fetch it with: make installations", file=sys.stderr)
            continue
        installations[name] = measure_installation(roots, arguments.jobs, with_split=arguments.split)
        for failure in installations[name].report.failures:
            if not failure.is_expected:
                print(f"size_table: {failure.name}: {failure.reason}", file=sys.stderr)
    if not installations:
        return 1
    print("\n".join(lines_of(installations)))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(reasons_of(installations), file, indent=2, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
