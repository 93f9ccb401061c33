# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: how much of each file SFrame can describe, and what is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cfi2sframe.cli.common import (
    add_conversion_options,
    conversion_options,
    count_from_one,
    fail,
    parser_of,
    read_image,
    worst,
)
from cfi2sframe.cli.exit_status import PROGRAM

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.render.coverage_table import FileCoverage
    from cfi2sframe.report.coverage import Coverage

#: How many functions each list of the text names, unless someone asks for more; as in `render.coverage_text`, which is
#: not imported before it is needed.
_DEFAULT_TOP = 10


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = parser_of(
        "coverage",
        f"{PROGRAM} coverage IN... [OPTION]...",
        "Say how much of the code the SFrame section describes, in bytes and in functions; what it leaves out, and\n"
        "why; and which code no CFI covers, the largest functions first. Several files are a table, with their\n"
        "sum. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --details --top 50 /usr/lib/*/libcrypto.so.3\n"
        f"  {PROGRAM} coverage --json --sframe-version 2 *.so\n",
    )
    parser.add_argument("inputs", metavar="IN", nargs="+", help="ELF objects, executables or libraries")
    add_conversion_options(parser)
    parser.add_argument(
        "--top",
        type=count_from_one,
        default=_DEFAULT_TOP,
        metavar="N",
        help=f"name the N largest functions of each kind that is missing (default {_DEFAULT_TOP}; code without CFI: "
        "1,000 at most)",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="name all of them, with every hole of functions that are described in part, and count the bytes of each "
        "section; of several files, each by itself before the table",
    )
    parser.add_argument(
        "--return-addresses",
        action="store_true",
        help="look up the return address of every call, too, as readers do that do not look up the call itself; takes "
        "about a second for 2 MB of code",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one account, or a list of them")
    return parser


def execute(arguments: argparse.Namespace) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    is_single = len(arguments.inputs) == 1
    return cover(((path, read_image) for path in arguments.inputs), arguments, is_single=is_single)


def cover(
    sources: Iterable[tuple[str, Callable[[str], ElfImage]]], arguments: argparse.Namespace, *, is_single: bool
) -> int:
    """Print the accounts of images, each given by its name and what loads it; return the worst one's exit status.

    `is_single`: the user named one file, and wants its account rather than a table, in JSON rather than a list.
    """
    printer = (_JsonPrinter if arguments.json else _TextPrinter)(arguments, is_single=is_single)
    statuses = []
    for name, load in sources:
        try:
            coverage = _account(load(name), arguments)
            printer.prepare(coverage)
        except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
            statuses.append(fail(error, name))
        else:
            # What fails here is standard output.
            printer.add(coverage)
    printer.end()
    return worst(statuses)


def _account(image: ElfImage, arguments: argparse.Namespace) -> Coverage:
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.report.coverage import account

    conversion = convert_image(image, conversion_options(arguments))
    coverage = account(conversion)
    if not arguments.return_addresses:
        return coverage
    from cfi2sframe.report.return_addresses import count_return_addresses

    return coverage._replace(return_addresses=count_return_addresses(conversion))


class _TextPrinter:
    """Prints an account as text, or a table of several."""

    def __init__(self, arguments: argparse.Namespace, *, is_single: bool) -> None:
        self._is_single = is_single
        self._top: int = arguments.top
        self._details: bool = arguments.details
        self._files: list[FileCoverage] = []

    def prepare(self, coverage: Coverage) -> None:
        """Keep what the table needs of an account. Raises what is the file's fault."""
        if not self._is_single:
            from cfi2sframe.render.coverage_table import FileCoverage

            self._files.append(FileCoverage.of(coverage))

    def add(self, coverage: Coverage) -> None:
        """Print an account, unless the table is all that is wanted."""
        if not self._is_single and not self._details:
            return
        from cfi2sframe.render.coverage_text import coverage_lines

        # Line by line: the text may be many times the size of the account.
        lines = coverage_lines(coverage, top=self._top, details=self._details)
        sys.stdout.writelines(f"{line}\n" for line in lines)
        if not self._is_single:
            sys.stdout.write("\n")

    def end(self) -> None:
        """Print the table, if there is one."""
        if self._files:
            from cfi2sframe.render.coverage_table import table_lines

            sys.stdout.writelines(f"{line}\n" for line in table_lines(self._files))


class _JsonPrinter:
    """Prints an account as JSON, or a list of several."""

    def __init__(self, _arguments: argparse.Namespace, *, is_single: bool) -> None:
        self._is_single = is_single
        self._accounts: list[dict[str, Any]] = []

    def prepare(self, coverage: Coverage) -> None:
        """Keep the data of an account. Raises what is the file's fault."""
        from cfi2sframe.render.coverage_json import coverage_data

        self._accounts.append(coverage_data(coverage))

    def add(self, coverage: Coverage) -> None:
        """Print nothing yet: the text is one list."""

    def end(self) -> None:
        """Print the accounts."""
        import json

        data = self._accounts[0] if self._is_single and self._accounts else self._accounts
        json.dump(data, sys.stdout, indent=2)
        sys.stdout.write("\n")
