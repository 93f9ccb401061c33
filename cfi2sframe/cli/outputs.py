# SPDX-License-Identifier: Apache-2.0
"""Where a verb prints to, and in which format: the options, the same for every verb that prints a report."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import TextIO

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
    ".out": "text",
    ".log": "text",
}


class Printing(NamedTuple):
    """The path of what is printed, `-` for standard output, and its format."""

    path: str = "-"
    format: str = "text"

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """Give what to print to; a file gets its name when all of it is written. Raises `OutputError`."""
        if self.path == "-":
            yield sys.stdout
            return
        import io

        text = io.StringIO()
        yield text
        write_text(self.path, text.getvalue())


def write_text(path: str, text: str) -> None:
    """Write a file, whole or not at all; `-` is standard output. Raises `OutputError`."""
    from cfi2sframe.files.write import write_output

    write_output(path, text.encode("utf-8", "backslashreplace"))


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> argparse._ArgumentGroup:
    """Add `-o` and `--format`; the first format is the default. Return their group."""
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="OUT", default="-", help="the file to write (default: -)")
    group.add_argument(
        "--format",
        choices=formats,
        metavar="NAME",
        help=f"{', '.join(formats[:-1])} or {formats[-1]} (default: by the suffix of OUT, else {formats[0]})",
    )
    group.set_defaults(formats=tuple(formats))
    return group


def printing_of(arguments: argparse.Namespace, inputs: Sequence[str]) -> Printing:
    """Return where to print what. Raises `RequestError` for a suffix of a format that the verb does not write."""
    check_apart("output", arguments.output, inputs)
    if arguments.format is not None:
        return Printing(arguments.output, arguments.format)
    formats = arguments.formats
    suffix = os.path.splitext(arguments.output)[1].lower()
    # Other letters name a format that no verb writes; digits are those of a version or a date.
    named = _BY_SUFFIX.get(suffix, suffix[1:] if suffix[1:].isalpha() else formats[0])
    if named not in formats:
        known = f"{', '.join(formats[:-1])} and {formats[-1]}"
        raise RequestError(f"-o {arguments.output}: the formats are {known}, not {named}")
    return Printing(arguments.output, named)


def check_apart(option: str, path: str | None, inputs: Sequence[str]) -> None:
    """Raise `RequestError` where an option names a file that is an input."""
    if path is None or not os.path.isfile(path):
        return
    if any(os.path.exists(name) and os.path.samefile(name, path) for name in inputs):
        raise RequestError(f"--{option} {path} would overwrite an input")
