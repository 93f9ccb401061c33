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
        help=f"default: what the suffix of OUT says, or {formats[0]}; --json is --format json",
    )
    group.add_argument("--json", action="store_const", dest="format", const="json", help="print JSON")
    group.set_defaults(formats=tuple(formats))
    return group


def format_of(arguments: argparse.Namespace) -> str:
    """Return the format that is asked for: by its name, or by the suffix of the output's."""
    if arguments.format is not None:
        return str(arguments.format)
    by_suffix = _BY_SUFFIX.get(os.path.splitext(arguments.output)[1].lower(), "")
    return by_suffix if by_suffix in arguments.formats else str(arguments.formats[0])


def check_output(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` when an output is a regular file that the user has named as an input."""
    named = [*getattr(arguments, "inputs", ()), *(getattr(arguments, "compare", None) or ())]
    named += [core] if (core := getattr(arguments, "core", None)) else []
    for option in ("output", "report"):
        path = getattr(arguments, option, None)
        if path is None or not os.path.isfile(path):
            continue
        if any(os.path.exists(name) and os.path.samefile(name, path) for name in named):
            raise RequestError(f"--{option} {path} would overwrite an input")


def json_text(data: object) -> str:
    """Return data as the JSON of a report."""
    import json

    return json.dumps(data, indent=2)


def json_list(texts: Sequence[str], *, is_single: bool) -> str:
    """Return the JSON of several files as one list; that of a single one is itself."""
    if is_single and texts:
        return f"{texts[0]}\n"
    from textwrap import indent

    lines = ",\n".join(indent(text, "  ") for text in texts)
    return f"[\n{lines}\n]\n" if texts else "[]\n"


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
