# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs have, and what their values become: files to read, how to convert, where to print."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.readers import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from cfi2sframe.conversion import Options
    from cfi2sframe.files.find import Source, Unusable

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


# Files


class Inputs(NamedTuple):
    """What the user has named, by words and by lists; `process_count` is that of the processes for several files."""

    names: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    process_count: int = 1

    def find(self) -> list[Source | Unusable]:
        """Return the files, and the ELF files in folders; `-` is standard input."""
        from cfi2sframe.files.find import find_sources

        return list(find_sources(self.names, self.excluded))


def add_inputs(parser: argparse.ArgumentParser, text: str, *, has_processes: bool = True) -> argparse._ArgumentGroup:
    """Add FILE... and what selects files in folders; return their group."""
    group = parser.add_argument_group("files")
    group.add_argument("inputs", metavar="FILE", nargs="*", help=text)
    group.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        default=[],
        help="skip files and folders by name, or by path if GLOB has a slash (repeatable)",
    )
    group.add_argument(
        "--files-from", metavar="LIST", help="also process the NUL-terminated names in LIST (find -print0); - is stdin"
    )
    if has_processes:
        group.add_argument(
            "-j", "--jobs", type=positive, metavar="N", help="number of processes (default: one per processor)"
        )
    else:
        parser.set_defaults(jobs=1)
    return group


def listed_names(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the names in the list of `--files-from`. Raises `RequestError` and `OSError`."""
    if arguments.files_from is None:
        return ()
    from cfi2sframe.files.words import names_from

    return tuple(names_from(arguments.files_from))


def inputs_of(arguments: argparse.Namespace) -> Inputs:
    """Return what a verb that reads works on. Raises `RequestError` when nothing is named, and `OSError`."""
    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input file")
    names = (*arguments.inputs, *listed_names(arguments))
    return Inputs(names, tuple(arguments.exclude), process_count(arguments.jobs))


def process_count(jobs: int | None) -> int:
    """Return the number of processes: that of `-j`, or one per processor that may be used."""
    return jobs or len(os.sched_getaffinity(0))


# Conversion


def add_conversion_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that determine the section; return their group."""
    group = parser.add_argument_group("conversion")
    group.add_argument(
        "--for",
        dest="reader",
        choices=READERS,
        metavar="NAME",
        help=f"write what this reader reads, and leave out functions that it would refuse: {', '.join(READERS)}",
    )
    add_version(group)
    group.add_argument(
        "--errata",
        type=int,
        choices=(0, 1, 2),
        metavar="N",
        help="V2 errata level to write: 0, 1 (PC-relative starts; default) or 2 (and undefined RA)",
    )
    add_source(group, ("eh_frame", "debug_frame", "gopclntab", "code"))
    add_level(group)
    group.add_argument(
        "--section-address",
        type=address,
        metavar="ADDR",
        help="load address of raw bytes (default: first 64 KiB boundary past PT_LOAD)",
    )
    return group


def add_version(group: argparse._ActionsContainer) -> None:
    """Add `--sframe-version`, of which None is the newest, or the one that `--for` names."""
    group.add_argument(
        "--sframe-version", type=int, choices=(1, 2, 3), metavar="N", help="SFrame version: 1, 2 or 3 (default 3)"
    )


def add_source(group: argparse._ActionsContainer, choices: tuple[str, ...]) -> None:
    """Add `--from`."""
    text = "code: also derive rows from the instructions of code without CFI"
    if len(choices) > 1:
        text = f"only this CFI: {', '.join(choice for choice in choices if choice != 'code')}" + (
            f"; {text}" if "code" in choices else ""
        )
    group.add_argument("--from", dest="source", choices=choices, metavar="CFI", help=text)


def add_level(group: argparse._ActionsContainer) -> None:
    """Add `-O`."""
    group.add_argument(
        "-O",
        dest="level",
        type=int,
        choices=(0, 1, 2),
        metavar="N",
        help="size: 0 no sharing, 1 equal rows shared, 2 (default) also functions cut and joined",
    )


def conversion_options(arguments: argparse.Namespace) -> Options:
    """Return the library's options for the command line's. Raises `RequestError` when they contradict."""
    from cfi2sframe.conversion import Options

    version, errata = arguments.sframe_version or 3, arguments.errata
    if arguments.reader is not None:
        reader = READERS[arguments.reader]
        for value, of_reader, option in (
            (arguments.sframe_version, reader.version, "sframe-version"),
            (errata, reader.errata, "errata"),
        ):
            if value not in (None, of_reader):
                raise RequestError(f"--for {arguments.reader} and --{option} {value} contradict each other")
        version, errata = reader.version, reader.errata
    if errata is not None and version != 2:
        raise RequestError("--errata is only valid with --sframe-version 2")
    return Options(version, errata, arguments.source, arguments.section_address, arguments.level)


# Output


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


# Values


def address(text: str) -> int:
    """Parse an address in C notation."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"not a 64-bit address: {text!r}")
    return value


def percentage(text: str) -> float:
    """Parse a number from 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"not a percentage: {text!r}")
    return value


def positive(text: str) -> int:
    """Parse a number of at least one."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return int(text)


def count_or_all(text: str) -> int | None:
    """Parse a count, or `all`, which is None."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"neither a count nor 'all': {text!r}")
    return int(text)
