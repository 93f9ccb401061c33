# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs have, and how their values are read."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from cfi2sframe.conversion import Options

#: The error where the address of a section cannot be chosen.
ADDRESS_BELONGS_TO_RAW: Final = (
    "--section-address belongs to raw bytes; in a file the address follows from the section's place"
)


def add_conversion_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the section, as a group."""
    group = parser.add_argument_group("the section")
    group.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version to write (default 3: GNU ld 2.46 and later; 2: GNU ld 2.41-2.45, glibc built with "
        "--enable-sframe; 1: GNU ld 2.40)",
    )
    group.add_argument(
        "--errata",
        type=int,
        choices=(0, 1, 2),
        metavar="{0,1,2}",
        help="the errata of version 2 that readers know (default 1: PC-relative starts; 0: for GNU ld before 2.45; "
        "2: rows with an undefined RA, at which glibc gives up the whole trace)",
    )
    group.add_argument(
        "--from",
        dest="source",
        choices=("eh_frame", "debug_frame", "gopclntab", "code"),
        help="the only CFI to read (default: all that a file has; where several describe an address, the first of "
        "these holds); code: all of it and, for code that no CFI covers, what its instructions say",
    )
    group.add_argument(
        "-O",
        dest="level",
        type=int,
        choices=(0, 1, 2),
        metavar="{0,1,2}",
        help="-O0: every function has its own rows, also for a readelf or objdump that is no native one, which cannot "
        "read shared rows of big-endian files; -O1: functions with equal rows share them; -O2: functions are also cut "
        "and joined into ranges of at most 16 rows (default 2; objects are always at 0, because linkers do not support "
        "shared rows)",
    )
    group.add_argument(
        "--section-address",
        type=address,
        metavar="ADDR",
        help="the address that the section will have (default: the first 64 KiB boundary past the last "
        "PT_LOAD; 0 for an object)",
    )


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
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"not a count from 1: {text!r}")
    return value


def count_from_zero(text: str) -> int:
    """Parse a count."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a count: {text!r}")
    return int(text)


def conversion_options(arguments: argparse.Namespace) -> Options:
    """Return the library's options for the command line's. Raises `RequestError` when they contradict."""
    from cfi2sframe.conversion import Options

    if arguments.errata is not None and arguments.sframe_version != 2:
        raise RequestError(f"version {arguments.sframe_version} has no errata; --errata belongs to version 2")
    return Options(
        version=arguments.sframe_version,
        errata=arguments.errata,
        source=arguments.source,
        section_vaddr=arguments.section_address,
        level=arguments.level,
    )


def process_count(arguments: argparse.Namespace) -> int:
    """Return the number of processes: that of `-j`, or one per processor that may be used."""
    return arguments.jobs or len(os.sched_getaffinity(0))
