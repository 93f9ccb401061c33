# SPDX-License-Identifier: Apache-2.0
"""Where a verb prints to, and in which format: the options, the same for every verb that prints a report."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from cfi2sframe.report.records import Report

#: What reports are written in; as in `report.formats`, which is imported when a report is rendered.
REPORT_FORMATS: Final = ("text", "markdown", "csv", "json", "html")
#: Formats by the suffix of the file that is written.
_BY_SUFFIX: Final = {
    ".txt": "text",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
}


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> argparse._ArgumentGroup:
    """Add `-o`, `--format` and its short form `--json`; the first format is the default. Return their group."""
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="OUT", default="-", help="the file to write (default: -)")
    group.add_argument(
        "--format",
        choices=formats,
        help=f"default: the one that the suffix of OUT names, or {formats[0]}; --json is --format json",
    )
    group.add_argument("--json", action="store_const", dest="format", const="json", help="print JSON")
    group.set_defaults(formats=tuple(formats))
    return group


def format_of(arguments: argparse.Namespace) -> str:
    """Return the format that is asked for: by its name, or by the suffix of the output's.

    Raises `RequestError` for the suffix of a format that the verb does not write.
    """
    if arguments.format is not None:
        return str(arguments.format)
    named = _BY_SUFFIX.get(os.path.splitext(arguments.output)[1].lower(), arguments.formats[0])
    if named not in arguments.formats:
        raise RequestError(f"-o {arguments.output}: the formats are {' and '.join(arguments.formats)}, not {named}")
    return str(named)


def check_output(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` for an output in no format of the verb, or a file that the user has named as an input."""
    if hasattr(arguments, "formats"):
        format_of(arguments)
    named = [*getattr(arguments, "inputs", ()), *(getattr(arguments, "compare", None) or ())]
    named += [core] if (core := getattr(arguments, "core", None)) else []
    for option in ("output", "report"):
        path = getattr(arguments, option, None)
        if path is None or not os.path.isfile(path):
            continue
        if any(os.path.exists(name) and os.path.samefile(name, path) for name in named):
            raise RequestError(f"--{option} {path} would overwrite an input")


def write_report(report: Report, arguments: argparse.Namespace) -> None:
    """Write a report in the format that is asked for. Raises `RequestError` without what a page needs."""
    from cfi2sframe.report.formats import render

    text = render(report, format_of(arguments))
    with output_of(arguments) as out:
        out.write(text)


@contextmanager
def output_of(arguments: argparse.Namespace) -> Iterator[TextIO]:
    """Give what to print to; a file gets its name when all of it is written. Raises `OutputError`."""
    if arguments.output == "-":
        yield sys.stdout
        return
    import io

    from cfi2sframe.files.write import write_output

    text = io.StringIO()
    yield text
    write_output(arguments.output, text.getvalue().encode("utf-8", "backslashreplace"))
