# SPDX-License-Identifier: Apache-2.0
"""Ask something of every ELF file among what a user names, here or in several processes; nothing is written."""

from __future__ import annotations

import gc
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cfi2sframe.batch import outcomes_of
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import CostError, ErrorKind, kind_of, reason_of
from cfi2sframe.files.find import Source, Unusable
from cfi2sframe.files.read import images_of, open_source
from cfi2sframe.guard import limited

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from cfi2sframe.elf.image import ElfImage

Answer = TypeVar("Answer")


class Reading(NamedTuple, Generic[Answer]):
    """A source, with the size of what was read, and for each ELF file in it the answer, or why there is none."""

    source: Source
    answers: tuple[Answer | Unusable, ...]


def read_source(source: Source, function: Callable[[ElfImage], Answer]) -> Reading[Answer]:
    """Call a function with each ELF file in a source. Raises nothing but interrupts: failures are answers."""
    answers: list[Answer | Unusable] = []
    try:
        with open_source(source) as data, limited(stored_size(data)):
            source = source._replace(size=stored_size(data))
            for image in images_of(source, data):
                answers.append(image if isinstance(image, Unusable) else _answer(image, function))  # noqa: PERF401 - those before a failure are kept
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        answers.append(_failure(source.name, error))
    return Reading(source, tuple(answers))


def _answer(image: ElfImage, function: Callable[[ElfImage], Answer]) -> Answer | Unusable:
    try:
        return function(image)
    except (CostError, MemoryError):
        # The limits are those of the whole source.
        raise
    except Exception as error:  # noqa: BLE001 - a member's failure is that member's
        return _failure(image.name, error)


def _failure(name: str, error: Exception) -> Unusable:
    # Whatever failed may have used up the memory that the next file needs.
    gc.collect()
    return Unusable(name, reason_of(error), kind_of(error))


def read_all(
    sources: Sequence[Source],
    function: Callable[[ElfImage], Answer],
    *,
    count: int,
    on_done: Callable[[Source, Reading[Answer]], None],
) -> Generator[Reading[Answer], None, None]:
    """Call a function with every ELF file in the sources; yield the readings in the order of the sources.

    `count` copies of this process do it; then its answers are pickled. `on_done` sees each source as soon as it is
    read, in any order. Closing the generator ends the processes.
    """
    if not all(source.size for source in sources):
        # Copies of this process have other standard input; pipes, too, are read where they were named.
        count = 1
    return outcomes_of(
        partial(read_source, function=function), sources, attrgetter("size"), _lost, count=count, on_done=on_done
    )


def _lost(source: Source, reason: str) -> Reading[Answer]:
    return Reading(source, (Unusable(source.name, reason, ErrorKind.SYSTEM),))
