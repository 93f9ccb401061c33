# SPDX-License-Identifier: Apache-2.0
"""The files and trees that a verb works on: the options that name them, the same for every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.options import count_from_one
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from cfi2sframe.files.find import Source, Unusable


def add_inputs(parser: argparse.ArgumentParser, text: str, *, is_writing: bool, has_processes: bool = True) -> None:
    """Add FILE... and what selects files in folders. A verb that writes enters folders with -r only.

    `has_processes`: the verb shares several files out among processes.
    """
    group = parser.add_argument_group("files")
    group.add_argument("inputs", metavar="FILE", nargs="*", help=text)
    group.add_argument(
        "-r",
        "--recursive",
        action="store_true",
        help="take the ELF files in folders; what is not for this program is skipped: files of other machines and "
        "without CFI, separate debug files, kernels"
        if is_writing
        else "no difference: folders are entered without it",
    )
    if is_writing:
        group.add_argument(
            "--objects",
            action="store_true",
            help="in folders, also take relocatable objects and kernel modules (default: only what is linked, because "
            "GNU ld before 2.46 cannot read crt1.o with version 3)",
        )
    group.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        default=[],
        help="in folders, leave out the files that match this shell pattern, and do not enter the folders that do: "
        "without a slash it is matched against each name below the folder, with a slash against the path below it, "
        "with a slash at its start against the absolute path; * matches slashes, too; may be repeated",
    )
    group.add_argument(
        "--files-from",
        metavar="LIST",
        help="also take the files named in LIST, each name terminated by a NUL byte; - is standard input",
    )
    if has_processes:
        group.add_argument(
            "-j",
            "--jobs",
            type=count_from_one,
            metavar="N",
            help="processes for several files (default: one per processor that may be used)",
        )


def names_of(arguments: argparse.Namespace) -> list[str]:
    """Return all that is named: by words, and by the list of `--files-from`. Raises `InputError` and `OSError`."""
    if arguments.files_from is None:
        return list(arguments.inputs)
    from cfi2sframe.files.words import names_from

    return [*arguments.inputs, *names_from(arguments.files_from)]


def sources_of(arguments: argparse.Namespace) -> Iterator[Source | Unusable]:
    """Yield what a verb that reads works on: files, and the ELF files in folders.

    `-` is standard input. Raises `RequestError` when nothing is named, and as `names_of` does.
    """
    from cfi2sframe.files.find import find_sources

    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input: name a file")
    return find_sources(names_of(arguments), arguments.exclude)
