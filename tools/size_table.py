#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure whole installations and put their sums side by side, as the README's table of sizes.

size_table.py [--jobs N] NAME=PATH[,PATH...]...

Each NAME is a column; its paths are folders or files. The report is Markdown on standard output.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli.progress import with_progress
from cfi2sframe.collect import find_sources
from cfi2sframe.report.render_markdown import markdown_table
from cfi2sframe.report.size_build import build_report
from cfi2sframe.report.size_records import MAKERS
from cfi2sframe.report.size_run import Request, measure_all, split_found
from cfi2sframe.report.size_tables import MAKER_NAMES, Column, Table, quotient
from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.report.size_records import SizeReport, Totals


def measure_roots(roots: list[str], jobs: int) -> SizeReport:
    """Measure everything under the roots."""
    sources, failures = split_found(find_sources(roots))
    measured = with_progress(measure_all(sources, Request(), jobs), len(sources), sum(s.size for s in sources))
    results = [result for _, results in measured for result in results]
    return build_report([*failures, *results], version=3)


def summary_table(reports: dict[str, SizeReport]) -> Table:
    """Return the sums of all installations, one per column."""
    totals = [report.totals for report in reports.values()]
    rows: list[tuple[str, ...]] = [
        ("ELF files with CFI", *(f"{t.file_count:,}" for t in totals)),
        ("functions (FDEs)", *(f"{t.fde_count:,}" for t in totals)),
        (".text", *(_size(t.sizes.text) for t in totals)),
        (".eh_frame", *(_size(t.sizes.cfi) for t in totals)),
        (".eh_frame_hdr", *(_size(t.sizes.eh_frame_hdr) for t in totals)),
    ]
    for version in VERSIONS:
        rows.append((f"version {version}: left out", *(_left_out(t, version) for t in totals)))
        for maker in MAKERS:
            cells = (_layout(t, version, maker == "gnu") for t in totals)
            rows.append((f"version {version} by {MAKER_NAMES[maker]}", *cells))
    columns = (Column("", "text"), *(Column(name) for name in reports))
    return Table("Sizes", columns, tuple(rows))


def _size(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def _left_out(totals: Totals, version: int) -> str:
    layout = totals.version(version).cfi2sframe
    if not totals.version(version).file_count:
        return "not defined"
    share = quotient(layout.left_out_count, layout.left_out_count + layout.function_count, 100)
    return f"{layout.left_out_count:,} ({share or 0:.3f} %)"


def _layout(totals: Totals, version: int, is_gnu: bool) -> str:  # noqa: FBT001 - which of two
    total = totals.version(version)
    if not total.file_count:
        return ""
    ratio = total.ratio("gnu" if is_gnu else "cfi2sframe")
    return f"{_size((total.gnu if is_gnu else total.cfi2sframe).size)} ({ratio or 0:.2f})"


def lines_of(reports: dict[str, SizeReport]) -> Iterator[str]:
    """Yield the report."""
    yield from markdown_table(summary_table(reports))
    yield ""
    yield "In brackets: the share of functions, and the ratio to `.eh_frame` + `.eh_frame_hdr`."


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", metavar="NAME=PATH[,PATH...]", nargs="+")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    arguments = parser.parse_args()
    reports = {}
    for column in arguments.columns:
        name, _, paths = column.partition("=")
        if not paths:
            parser.error(f"{column!r} is not NAME=PATH")
        roots = [path for path in paths.split(",") if os.path.exists(path)]
        if not roots:
            print(f"size_table: {paths} is not here; fetch it with: make corpus-files", file=sys.stderr)
            continue
        reports[name] = measure_roots(roots, arguments.jobs)
        for failure in reports[name].failures:
            if not failure.is_expected:
                print(f"size_table: {failure.name}: {failure.reason}", file=sys.stderr)
    if not reports:
        return 1
    print("\n".join(lines_of(reports)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
