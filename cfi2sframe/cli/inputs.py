# SPDX-License-Identifier: Apache-2.0
"""The files and trees that a verb works on: the options that name them, the same for every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.options import count_from_one
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.files import Source, Unusable


def add_inputs(parser: argparse.ArgumentParser, text: str, *, is_writing: bool) -> None:
    """Add FILE... and what selects files in folders. A verb that writes enters folders with -r only."""
    group = parser.add_argument_group("files")
    group.add_argument("inputs", metavar="FILE", nargs="*", help=text)
    group.add_argument(
        "-r",
        "--recursive",
        action="store_true",
        help="take the ELF files in folders" if is_writing else "no difference: folders are entered without it",
    )
    group.add_argument(
        "--files-from",
        metavar="LIST",
        help="also take the files named in LIST, each name terminated by a NUL byte; - is standard input",
    )
    group.add_argument(
        "-j",
        "--jobs",
        type=count_from_one,
        metavar="N",
        help="processes for several files (default: one per processor that may be used)",
    )


def names_of(arguments: argparse.Namespace) -> list[str]:
    """Return what the user has named, on the command line and in a list.

    Raises `RequestError` when that is nothing, `OSError` when the list cannot be read.
    """
    names = list(arguments.inputs)
    if arguments.files_from is not None:
        from cfi2sframe.files.words import names_from

        names += names_from(arguments.files_from)
    elif not names:
        raise RequestError("no input: name a file")
    return names


def sources_of(arguments: argparse.Namespace) -> list[Source | Unusable]:
    """Return what a verb that only reads has to open. Raises as `names_of` does."""
    from cfi2sframe.files import find_sources

    return list(find_sources(names_of(arguments)))
