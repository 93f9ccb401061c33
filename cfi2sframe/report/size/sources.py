# SPDX-License-Identifier: Apache-2.0
"""Measure many sources, in one process or several, each with one file in its memory at a time."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.errors import Cfi2SFrameError, ErrorKind, reason_of
from cfi2sframe.files import Source, Unusable, open_source
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.report.size.measure import Request, measure
from cfi2sframe.report.size.records import Failure, FileSizes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from concurrent.futures import Executor

    from cfi2sframe.elf.image import ElfImage

#: Sources of this size and more are followed by a collection of reference cycles; after small ones it is not worth it.
_COLLECT_FROM: Final = 1 << 20


class Measured(NamedTuple):
    """A source, and a result for each file in it."""

    source: Source
    results: tuple[FileSizes | Failure, ...]


def measure_source(source: Source, request: Request) -> Measured:
    """Measure every file in a source. Raises nothing but interrupts: failures are results."""
    results: list[FileSizes | Failure] = []
    try:
        for image in open_source(source):
            results.append(_measure(image, request))  # noqa: PERF401 - those before a failure are kept
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        results.append(Failure(source.name, _caught(error)))
    if source.size >= _COLLECT_FROM:
        gc.collect()
    return Measured(source, tuple(results))


def _measure(image: ElfImage | Unusable, request: Request) -> FileSizes | Failure:
    if isinstance(image, Unusable):
        return _failure(image.name, image.reason, image.kind)
    try:
        return measure(image, request)
    except Cfi2SFrameError as error:
        return _failure(image.name, str(error), error.kind)
    except Exception as error:  # noqa: BLE001 - a member's failure is that member's
        return Failure(image.name, _caught(error))


def _caught(error: Exception) -> str:
    """Return the reason of an unexpected error, which may have left the memory full."""
    gc.collect()
    return reason_of(error)


def _failure(name: str, reason: str, kind: ErrorKind) -> Failure:
    return Failure(name, reason, is_expected=kind is ErrorKind.UNFIT)


def measure_all(
    sources: Sequence[Source], request: Request, jobs: int, executor: Executor | None = None
) -> Generator[Measured, None, None]:
    """Measure sources and yield each when it is done; several processes start with the largest.

    Without an executor, copies of this process measure them, which end when the generator is closed. The caller shuts
    its executor down.
    """
    function = partial(measure_source, request=request)
    with results_of(function, sources, _size_of, count=jobs, executor=executor) as results:
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
