# SPDX-License-Identifier: Apache-2.0
"""The verb `size`: what SFrame costs, for files, trees, archives and packages, in every version."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from cfi2sframe.cli.common import fail, say
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, EXIT_USAGE, PROGRAM
from cfi2sframe.cli.options import count_from_one, process_count
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from cfi2sframe.files import Source, Unusable
    from cfi2sframe.report.size.records import SizeComparison, SizeReport
    from cfi2sframe.report.size.sources import Measured
    from cfi2sframe.report.size.totals import Result

_HTML_FUNCTION_COUNT = 20
_ORDERS = ("sframe", "gnu", "ratio", "cfi", "file", "functions", "left-out", "larger", "name")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} size PATH... [OPTION]...\n       {PROGRAM} size --compare OLD NEW [OPTION]...",
        "Measure what SFrame costs or would cost: per file and in total, in every version, as this program writes it\n"
        "and as GNU as and ld would lay it out; what the bytes are used for, and what is left out. No file is\n"
        "changed.\n\n"
        "PATH is an ELF file, a folder (its ELF files, recursively), a static archive, a .deb or an .rpm.",
        f"examples:\n  {PROGRAM} size /bin/ls\n  {PROGRAM} size /usr/lib -j 4 --top 20 --format html -o report.html\n"
        f"  {PROGRAM} size --compare old/ new/ --format markdown\n",
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="what to measure")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="two files, or two trees matched by name")
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "markdown", "html"), default="table", help="default: table"
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to write the report (default: -)")
    parser.add_argument(
        "--functions",
        type=_count,
        metavar="N",
        help="list the N costliest functions, and the N that exceed their FDE most "
        f"(html: {_HTML_FUNCTION_COUNT}, else 0)",
    )
    parser.add_argument("--sort", choices=_ORDERS, default="sframe", help="the order of the files (default: sframe)")
    parser.add_argument("--top", type=_count, metavar="N", help="list only N files; totals count all")
    parser.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version for the order, the functions and the changes (default 3)",
    )
    parser.add_argument(
        "-j", "--jobs", type=count_from_one, metavar="N", help="processes (default: one per processor that may be used)"
    )
    parser.add_argument(
        "--executor",
        metavar="MODULE:CALLABLE",
        help="measure on an executor of concurrent.futures that this factory makes; it is called with max_workers=N",
    )
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: auto")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"not a count: {text!r}")
    return value


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; a file that cannot be read is a line of the report and does not stop the others."""
    if bool(arguments.paths) == bool(arguments.compare):
        say("error", "name what to measure, or two things to compare, and not both")
        return EXIT_USAGE
    if arguments.functions is None:
        arguments.functions = _HTML_FUNCTION_COUNT if arguments.format == "html" and not arguments.compare else 0
    try:
        report = _compare(arguments) if arguments.compare else _measure(arguments)
    except RequestError as error:
        return fail(error, "")
    try:
        _write(report, arguments)
    except OutputError as error:
        return fail(error, "")
    return _say_failures(report)


def _say_failures(report: SizeReport | SizeComparison) -> int:
    """Report what could not be measured, and return the exit status.

    Some files of a tree may have nothing to measure, but not all of them.
    """
    from cfi2sframe.report.size.records import SizeReport

    totals = (report.totals,) if isinstance(report, SizeReport) else report.totals
    is_empty = not all(side.file_count for side in totals)
    failures = [failure for failure in report.failures if is_empty or not failure.is_expected]
    for failure in failures:
        say("error", failure.reason, failure.name)
    if is_empty and not failures:
        say("error", "there is nothing to measure")
    return EXIT_UNUSABLE if failures or is_empty else EXIT_SUCCESS


def _measure(arguments: argparse.Namespace) -> SizeReport:
    from cfi2sframe.files import find_sources
    from cfi2sframe.report.size.totals import build_report

    return build_report(
        _results(find_sources(arguments.paths), arguments),
        version=arguments.sframe_version,
        order=arguments.sort,
        top=arguments.top,
        function_count=arguments.functions,
    )


def _compare(arguments: argparse.Namespace) -> SizeComparison:
    from cfi2sframe.files import find_relative
    from cfi2sframe.report.size.totals import build_comparison

    old, new = (_results(find_relative(root), arguments) for root in arguments.compare)
    return build_comparison(old, new, version=arguments.sframe_version, top=arguments.top)


def _results(found: Iterable[Source | Unusable], arguments: argparse.Namespace) -> list[Result]:
    from cfi2sframe.cli.progress import with_progress
    from cfi2sframe.pool import named_executor
    from cfi2sframe.report.size.sources import Request, measure_all, split_found

    sources, failures = split_found(found)
    request = Request(arguments.functions, arguments.sframe_version)
    results: list[Result] = list(failures)
    count = process_count(arguments)
    with named_executor(arguments.executor, count) as executor:
        measured = measure_all(sources, request, count, executor)
        with closing(measured):
            for _, parts in with_progress(measured, _size_of, len(sources), sum(source.size for source in sources)):
                results += parts
    return results


def _size_of(measured: Measured) -> int:
    return measured.source.size


def _write(report: SizeReport | SizeComparison, arguments: argparse.Namespace) -> None:
    if arguments.output == "-":
        _render(report, arguments, sys.stdout)
        return
    import io

    from cfi2sframe.files.write import write_output

    text = io.StringIO()
    _render(report, arguments, text)
    write_output(arguments.output, text.getvalue().encode("utf-8", "backslashreplace"))


def _render(report: SizeReport | SizeComparison, arguments: argparse.Namespace, out: TextIO) -> None:
    """Write a report in the requested format; the code of the others is not loaded."""
    from cfi2sframe.report.size.records import SizeReport

    if arguments.format == "json":
        import json

        from cfi2sframe.render.json import comparison_data, report_data

        data = report_data(report) if isinstance(report, SizeReport) else comparison_data(report)
        json.dump(data, out, indent=1)
        out.write("\n")
    elif arguments.format == "csv":
        from cfi2sframe.render.csv import write_comparison, write_report

        if isinstance(report, SizeReport):
            write_report(report, out)
        else:
            write_comparison(report, out)
    elif arguments.format == "html":
        from cfi2sframe.render.html import comparison_page, report_page

        out.write(report_page(report) if isinstance(report, SizeReport) else comparison_page(report))
    else:
        from cfi2sframe.report.size.tables import comparison_tables, report_tables

        tables = report_tables(report) if isinstance(report, SizeReport) else comparison_tables(report)
        if arguments.format == "markdown":
            from cfi2sframe.render.markdown import render_markdown

            lines = render_markdown(tables)
        else:
            from cfi2sframe.render.table import render_tables

            lines = render_tables(tables, colour=_wants_colour(arguments.color, out))
        out.writelines(f"{line}\n" for line in lines)


def _wants_colour(choice: str, out: TextIO) -> bool:
    """Whether to use colour: on terminals, unless NO_COLOR is set and not empty (no-color.org)."""
    if choice == "auto":
        return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"
