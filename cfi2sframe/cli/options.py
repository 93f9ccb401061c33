# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs have, and how their values are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cfi2sframe.errors import RequestError
from cfi2sframe.readers import READERS

if TYPE_CHECKING:
    from cfi2sframe.conversion import Options


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


def count_from_one(text: str) -> int:
    """Parse a count of at least one."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a count from 1: {text!r}")
    return int(text)


def count_or_all(text: str) -> int | None:
    """Parse a count, or `all`, which is None."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"neither a count nor 'all': {text!r}")
    return int(text)
