# SPDX-License-Identifier: Apache-2.0
"""The verb `size`: what SFrame costs, for files, trees and archives, in every version."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.common import fail, say
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, EXIT_USAGE, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import process_count
from cfi2sframe.cli.outputs import add_output, check_output, format_of, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from cfi2sframe.files import Source, Unusable
    from cfi2sframe.render.origin import Origin
    from cfi2sframe.report.size.records import SizeComparison, SizeReport
    from cfi2sframe.report.size.sources import Measured
    from cfi2sframe.report.size.totals import Result

#: What pages list when the command line does not say: functions of each kind.
_HTML_FUNCTION_COUNT: Final = 20
#: The lines of a table for people; files for programs, and pages, list all.
_TEXT_LINE_COUNT: Final = 25
_FORMATS: Final = ("text", "json", "csv", "markdown", "html")
_ORDERS: Final = (
    *("sframe", "gnu", "ratio", "growth", "rows", "cfi", "file", "functions", "left-out", "larger", "name"),
)
#: `--top all`, as a number of lines.
_ALL: Final = sys.maxsize


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} size FILE... [OPTION]...\n       {PROGRAM} size --compare OLD NEW [OPTION]...",
        "Measure what SFrame costs or would cost, as this program writes it and as GNU as and ld would lay it out: in\n"
        "one sentence, and for each file or folder. No file is changed.",
        f"examples:\n  {PROGRAM} size /bin/ls\n  {PROGRAM} size /usr/bin --by folder --top 10\n"
        f"  {PROGRAM} size /usr/lib -j 4 -o report.html\n"
        f"  {PROGRAM} size --compare old/ new/ --format markdown\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    _add_measured(parser)
    _add_lines(parser)


def _add_measured(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="two files, or two trees matched by name")
    group.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version for the headline, the order, the functions and the changes (default 3)",
    )
    group.add_argument(
        "-O",
        dest="level",
        type=int,
        choices=(0, 1, 2),
        metavar="{0,1,2}",
        help="how far sections are made small, as convert's -O (default 2; objects are always at 0)",
    )
    group.add_argument(
        "--from",
        dest="source",
        choices=("code",),
        help="code: also what the instructions say of code that no CFI covers, as convert's --from code",
    )


def _add_lines(parser: argparse.ArgumentParser) -> None:
    group = add_output(parser, _FORMATS)
    group.add_argument(
        "--by",
        choices=("file", "folder"),
        default="file",
        help="what a line is about: a file, or the files of a folder (default: file)",
    )
    group.add_argument(
        "--details",
        action="store_true",
        help="add the other tables: every version, where the bytes go, look-ups, rows, what is left out and why",
    )
    group.add_argument("--sort", choices=_ORDERS, default="sframe", help="the order of the lines (default: sframe)")
    group.add_argument(
        "--top",
        type=_top,
        metavar="N",
        help=f"list only N lines, or all of them (default: {_TEXT_LINE_COUNT} in text and markdown, else all); totals "
        "count all",
    )
    group.add_argument(
        "--functions",
        type=_count,
        metavar="N",
        help="list the N costliest functions, and the N that exceed their FDE most "
        f"(html: {_HTML_FUNCTION_COUNT}, else 0)",
    )
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: auto")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"not a count: {text!r}")
    return value


def _top(text: str) -> int:
    return _ALL if text == "all" else _count(text)


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; a file that cannot be read is a line of the report and does not stop the others."""
    wrong = _contradiction(arguments)
    if wrong:
        say("error", wrong)
        return EXIT_USAGE
    _fill_defaults(arguments)
    try:
        check_output(arguments)
        report = _compare(arguments) if arguments.compare else _measure(arguments)
    except RequestError as error:
        return fail(error, "")
    except OSError as error:
        return fail(error, arguments.files_from)
    try:
        with output_of(arguments) as out:
            _render(report, arguments, out)
    except OutputError as error:
        return fail(error, "")
    return _say_failures(report)


def _contradiction(arguments: argparse.Namespace) -> str:
    """Return what is wrong with the options; nothing when they go together."""
    if arguments.compare and (arguments.inputs or arguments.files_from):
        return "--compare OLD NEW takes no other files"
    if arguments.compare and arguments.by != "file":
        return f"--compare goes by file, not by {arguments.by}"
    return ""


def _fill_defaults(arguments: argparse.Namespace) -> None:
    """Fill in the format, and what follows from it."""
    arguments.format = format_of(arguments)
    if arguments.functions is None:
        arguments.functions = _HTML_FUNCTION_COUNT if arguments.format == "html" and not arguments.compare else 0
    if arguments.top is None and arguments.format in ("text", "markdown"):
        arguments.top = _TEXT_LINE_COUNT


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
    from cfi2sframe.report.size.sources import folders_of
    from cfi2sframe.report.size.totals import build_report, readable_functions

    failures, measured = _results(sources_of(arguments), arguments)
    report = build_report(
        (*failures, *(result for each in measured for result in each.results)),
        version=arguments.sframe_version,
        order=arguments.sort,
        top=arguments.top,
        function_count=arguments.functions,
        # Pages have all that there is.
        folders=folders_of(measured) if arguments.by == "folder" or arguments.format == "html" else None,
        level=arguments.level,
    )
    # Programs have names as they are linked.
    for_people = arguments.format not in ("json", "csv")
    return report._replace(functions=readable_functions(report.functions)) if for_people else report


def _compare(arguments: argparse.Namespace) -> SizeComparison:
    from cfi2sframe.files import find_relative
    from cfi2sframe.report.size.totals import build_comparison

    sides: list[list[Result]] = []
    for root in arguments.compare:
        failures, measured = _results(find_relative(root, arguments.exclude), arguments)
        sides.append([*failures, *(result for each in measured for result in each.results)])
    old, new = sides
    version, top, level = arguments.sframe_version, arguments.top, arguments.level
    return build_comparison(old, new, version=version, top=top, level=level)


def _results(found: Iterable[Source | Unusable], arguments: argparse.Namespace) -> tuple[list[Result], list[Measured]]:
    """Return what cannot be opened, and what was measured."""
    from cfi2sframe.cli.progress import with_progress
    from cfi2sframe.report.size.measure import Request
    from cfi2sframe.report.size.sources import measure_all, split_found

    sources, failures = split_found(found)
    request = Request(
        arguments.functions,
        arguments.sframe_version,
        versions=_versions(arguments),
        level=arguments.level,
        source=arguments.source,
    )
    results = measure_all(sources, request, process_count(arguments))
    with closing(results):
        measured = list(with_progress(results, _size_of, len(sources), sum(source.size for source in sources)))
    return list(failures), measured


def _size_of(measured: Measured) -> int:
    return measured.source.size


def _versions(arguments: argparse.Namespace) -> tuple[int, ...]:
    """Return the versions that the report shows: a headline and its table are about one."""
    is_short = arguments.format in ("text", "markdown") and not arguments.details
    return (arguments.sframe_version,) if is_short else (1, 2, 3)


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
        _write_csv(report, arguments, out)
    elif arguments.format == "html":
        from cfi2sframe.render.html import comparison_page, report_page

        origin = _origin(arguments)
        out.write(report_page(report, origin) if isinstance(report, SizeReport) else comparison_page(report, origin))
    else:
        _write_text(report, arguments, out)


def _write_csv(report: SizeReport | SizeComparison, arguments: argparse.Namespace, out: TextIO) -> None:
    from cfi2sframe.render import csv
    from cfi2sframe.report.size.records import SizeReport

    if not isinstance(report, SizeReport):
        csv.write_comparison(report, out)
    elif arguments.by == "folder" and report.folders is not None:
        csv.write_folders(report.folders, out)
    else:
        csv.write_report(report, out)


def _write_text(report: SizeReport | SizeComparison, arguments: argparse.Namespace, out: TextIO) -> None:
    """Write the headline and its table, and with --details the other tables."""
    from cfi2sframe.render import markdown, table
    from cfi2sframe.render.headline import headline, remarks, sentence
    from cfi2sframe.report.size.records import SizeReport
    from cfi2sframe.report.size.tables import comparison_tables, named_functions_tables, report_tables

    tables = []
    if isinstance(report, SizeReport):
        from cfi2sframe.report.size.answers import answer_table

        if report.totals.file_count:
            tables.append(answer_table(report, arguments.by))
        if arguments.details:
            tables += report_tables(report)
        else:
            tables += [each for each in named_functions_tables(report) if each.rows]
    else:
        from cfi2sframe.report.size.answers import comparison_answer

        tables.append(comparison_answer(report))
        if arguments.details:
            tables += comparison_tables(report)
    first = headline(report)
    if arguments.format == "markdown":
        lines = markdown.render_report(sentence(first), tables, remarks(report))
    else:
        lines = table.render_report(first, tables, remarks(report), colour=_wants_colour(arguments.color, out))
    out.writelines(f"{line}\n" for line in lines)


def _origin(arguments: argparse.Namespace) -> Origin:
    """Return where a page was made, of what and how."""
    from cfi2sframe import __version__
    from cfi2sframe.render.origin import origin_of

    level = "2" if arguments.level is None else str(arguments.level)
    options = [f"--sframe-version {arguments.sframe_version}", f"-O{level}"]
    options += [f"--top {arguments.top}"] if arguments.top not in (None, _ALL) else []
    options += [f"--sort {arguments.sort}"] if arguments.sort != "sframe" else []
    return origin_of(f"{PROGRAM} {__version__}", arguments.compare or arguments.inputs, options)


def _wants_colour(choice: str, out: TextIO) -> bool:
    """Whether to use colour: on terminals, unless NO_COLOR is set and not empty (no-color.org)."""
    if choice == "auto":
        return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"
