# SPDX-License-Identifier: Apache-2.0
"""The files and trees that a verb works on: the options that name them, the same for every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.options import count_from_one

if TYPE_CHECKING:
    import argparse


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
