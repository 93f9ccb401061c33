# SPDX-License-Identifier: Apache-2.0
"""The verb `size`: what SFrame costs, for files, trees and archives."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.answers import Collected, collect, publish
from cfi2sframe.cli.common import fail, fail_early, worst
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import count_from_zero
from cfi2sframe.cli.outputs import REPORT_FORMATS, add_output, check_output, format_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.find import Source, Unusable
    from cfi2sframe.report.records import Report
    from cfi2sframe.report.size import FileSize

#: The lines of a table for people; files for programs, and pages, list all.
_TEXT_LINE_COUNT: Final = 25
_ORDERS: Final = (
    *("sframe", "gnu", "ratio", "growth", "rows", "cfi", "file", "functions", "left-out", "name"),
)  # fmt: skip
#: `--top all`, as a number of lines.
_ALL: Final = sys.maxsize
_NOTHING: Final = "there is nothing to measure"

#: The sizes of a file, in one version or several, and its folder.
_Kept = tuple[tuple["FileSize", ...], str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} size FILE... [OPTION]...\n       {PROGRAM} size --compare OLD NEW [OPTION]...",
        "Measure what SFrame costs or would cost, as this program writes it and, about, as GNU as and ld would: in\n"
        "one sentence, and for each file or folder. No file is changed.",
        f"examples:\n  {PROGRAM} size /bin/ls\n  {PROGRAM} size /usr/bin --by folder --top 10\n"
        f"  {PROGRAM} size /usr/lib -j 4 -o report.html\n"
        f"  {PROGRAM} size --compare old/ new/ --format markdown\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    group = parser.add_argument_group("what is measured")
    group.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="two files, or two trees matched by name")
    group.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version to measure (default 3)",
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
    _add_lines(parser)


def _add_lines(parser: argparse.ArgumentParser) -> None:
    group = add_output(parser, REPORT_FORMATS)
    group.add_argument(
        "--by",
        choices=("file", "folder"),
        default="file",
        help="what a line is about: a file, or the files of a folder (default: file)",
    )
    group.add_argument(
        "--details", action="store_true", help="measure every version: where the bytes go, functions, records and rows"
    )
    group.add_argument("--sort", choices=_ORDERS, default="sframe", help="the order of the lines (default: sframe)")
    group.add_argument(
        "--top",
        type=_top,
        metavar="N",
        help=f"list only N lines, or all of them (default: {_TEXT_LINE_COUNT} in text and markdown, else all); totals "
        "count all",
    )


def _top(text: str) -> int:
    return _ALL if text == "all" else count_from_zero(text)


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; a file that cannot be read does not stop the others."""
    try:
        _check(arguments)
        check_output(arguments)
        found = [] if arguments.compare else list(sources_of(arguments))
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, arguments.files_from)
    try:
        return _compare(arguments) if arguments.compare else _measure(found, arguments)
    except (OutputError, RequestError) as error:
        return fail(error, "")


def _check(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` when options contradict; fill in the number of lines."""
    if arguments.compare and (arguments.inputs or arguments.files_from):
        raise RequestError("--compare OLD NEW takes no other files")
    if arguments.compare and arguments.by != "file":
        raise RequestError(f"--compare goes by file, not by {arguments.by}")
    if arguments.compare and arguments.details:
        raise RequestError("--compare measures one version; --details belongs to a report of files")
    if arguments.top is None and format_of(arguments) in ("text", "markdown"):
        arguments.top = _TEXT_LINE_COUNT


def _measure(found: Sequence[Source | Unusable], arguments: argparse.Namespace) -> int:
    collected = _collect(found, arguments)
    return publish(collected, partial(_report, arguments=arguments), arguments, _NOTHING)


def _report(kept: list[_Kept], arguments: argparse.Namespace) -> Report:
    from cfi2sframe.report.size_report import size_report

    pairs = [(size, folder) for sizes, folder in kept for size in sizes]
    return size_report(
        [size for size, _ in pairs],
        arguments.sframe_version,
        level=arguments.level,
        order=arguments.sort,
        top=arguments.top,
        folders=[folder for _, folder in pairs] if arguments.by == "folder" else None,
        undefined_count=sum(
            arguments.sframe_version not in {size.sframe_version for size in sizes} for sizes, _ in kept
        ),
    )


def _compare(arguments: argparse.Namespace) -> int:
    from cfi2sframe.files.find import find_relative
    from cfi2sframe.report.size_report import comparison_report

    old, new = (_collect(list(find_relative(root, arguments.exclude)), arguments) for root in arguments.compare)
    both = Collected(
        [*old.kept, *new.kept] if old.kept and new.kept else [],
        [*old.skipped, *new.skipped],
        [*old.failed, *new.failed],
        worst((old.status, new.status)),
        old.size + new.size,
    )

    def report(_: list[_Kept]) -> Report:
        before, after = ([size for sizes, _ in side.kept for size in sizes] for side in (old, new))
        return comparison_report(before, after, arguments.sframe_version, top=arguments.top)

    return publish(both, report, arguments, _NOTHING)


def _collect(found: Sequence[Source | Unusable], arguments: argparse.Namespace) -> Collected[_Kept]:
    from cfi2sframe.conversion import Options

    versions = (1, 2, 3) if arguments.details else (arguments.sframe_version,)
    options = [Options(version, source=arguments.source, level=arguments.level) for version in versions]
    return collect(found, partial(_sizes_of, options=options), _keep, arguments)


def _sizes_of(image: ElfImage, options: Sequence[Options]) -> tuple[FileSize, ...]:
    """Measure a file in each version that defines its ABI."""
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.report.size import measure

    defined = [each for each in options if each.version >= image.arch.first_version]
    return tuple([measure(convert_image(image, each)) for each in defined])


def _keep(sizes: tuple[FileSize, ...], source: Source) -> _Kept:
    return sizes, os.path.dirname(source.name) or "."
