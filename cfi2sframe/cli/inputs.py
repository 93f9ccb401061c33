# SPDX-License-Identifier: Apache-2.0
"""The files and folders that a verb works on: the options that name them, the same for every verb."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.cli.options import count_from_one
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.files.find import Source, Unusable


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
            "-j", "--jobs", type=count_from_one, metavar="N", help="number of processes (default: one per processor)"
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
