# SPDX-License-Identifier: Apache-2.0
"""A question to every ELF file that the user has named: in processes, with the progress of the run."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from cfi2sframe.cli.options import process_count
from cfi2sframe.errors import ErrorKind
from cfi2sframe.files import Source, Unusable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage

Answer = TypeVar("Answer")


def is_one_file(found: Sequence[Source | Unusable]) -> bool:
    """Whether the user has named a single file, and not a folder or a container."""
    return len(found) == 1 and isinstance(found[0], Source) and found[0].kind == "elf" and not found[0].is_in_folder


def is_skipped(source: Source | Unusable, result: Unusable) -> bool:
    """Whether a file has nothing that was asked for, and was found, not named: then it is no failure."""
    was_found = isinstance(source, Unusable) or source.is_in_folder or source.kind != "elf"
    return result.kind is ErrorKind.UNFIT and was_found


def answers_of(
    found: Sequence[Source | Unusable], function: Callable[[ElfImage], Answer], arguments: argparse.Namespace
) -> Iterator[tuple[Source | Unusable, Answer | Unusable]]:
    """Yield each source with the answer for each ELF file in it, in their order; what cannot be opened comes first.

    A source's size is then that of what was read. The caller may print while it has an answer.
    """
    from cfi2sframe.cli.progress import ProgressLine
    from cfi2sframe.readings import read_all

    yield from ((item, item) for item in found if isinstance(item, Unusable))
    sources = [item for item in found if isinstance(item, Source)]
    with ProgressLine(len(sources), sum(source.size for source in sources)) as line:
        done = read_all(sources, function, count=process_count(arguments), on_done=lambda source: line.add(source.size))
        with closing(done):
            for source, results in done:
                line.clear()
                yield from ((source, result) for result in results)
