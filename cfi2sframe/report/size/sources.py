# SPDX-License-Identifier: Apache-2.0
"""Measure many sources, in one process or several, each with one file in its memory at a time."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.errors import ErrorKind
from cfi2sframe.files import Source, Unusable
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.readings import read_source
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import Failure, FileSizes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence


class Measured(NamedTuple):
    """A source, and a result for each file in it."""

    source: Source
    results: tuple[FileSizes | Failure, ...]


def measure_source(source: Source, request: Request) -> Measured:
    """Measure every file in a source. Raises nothing but interrupts: failures are results."""
    answers = read_source(source, lambda image: measure(image, request)).answers
    return Measured(source, tuple([_failure(*each) if isinstance(each, Unusable) else each for each in answers]))


def _failure(name: str, reason: str, kind: ErrorKind) -> Failure:
    return Failure(name, reason, is_expected=kind is ErrorKind.UNFIT)


def measure_all(sources: Sequence[Source], request: Request, jobs: int) -> Generator[Measured, None, None]:
    """Measure sources and yield each when it is done; several processes start with the largest.

    They are copies of this process, and end when the generator is closed.
    """
    function = partial(measure_source, request=request)
    with results_of(function, sources, _size_of, count=jobs) as results:
        for number, result in results:
            if isinstance(result, Lost):
                yield Measured(sources[number], (Failure(sources[number].name, result.reason),))
            else:
                yield result


def _size_of(source: Source) -> int:
    return source.size


def split_found(found: Iterable[Source | Unusable]) -> tuple[list[Source], list[Failure]]:
    """Separate the sources that can be opened from the failures."""
    sources: list[Source] = []
    failures: list[Failure] = []
    for item in found:
        if isinstance(item, Unusable):
            failures.append(_failure(item.name, item.reason, item.kind))
        else:
            sources.append(item)
    return sources, failures


def folders_of(measured: Iterable[Measured]) -> dict[str, str]:
    """Return the folder of each file, of a member the folder of its archive."""
    return {result.name: os.path.dirname(each.source.name) or "." for each in measured for result in each.results}
