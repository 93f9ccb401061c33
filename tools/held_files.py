# SPDX-License-Identifier: Apache-2.0
"""What held_to_cfi.py and hidden_cfi.py share: each ELF file below some folders is judged, in several processes."""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cfi2sframe import load
from cfi2sframe.errors import InputError
from cfi2sframe.files import find_sources
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.report.size.sources import split_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files import Source

Found = TypeVar("Found")


class FileResult(NamedTuple, Generic[Found]):
    """What was found in a file, in how many seconds of CPU time; or why nothing was: `unusable` or `crash` says so."""

    path: str
    found: Found | None = None
    seconds: float = 0.0
    unusable: str = ""
    crash: str = ""


def judged(source: Source, judge: Callable[[ElfImage], Found]) -> FileResult[Found]:
    """Return what a function finds in a file, whatever it raises."""
    begin = time.process_time()
    try:
        found = judge(load(source.path))
    except InputError as error:
        return FileResult(source.path, unusable=error.reason)
    except Exception:  # noqa: BLE001 - these programs search for exceptions that must never be raised
        return FileResult(source.path, crash=traceback.format_exc())
    finally:
        # The pool's processes collect nothing by themselves, and the next file has limits of its own.
        gc.collect()
    return FileResult(source.path, found, time.process_time() - begin)


def results(
    roots: Iterable[str], task: Callable[[Source], FileResult[Found]], jobs: int
) -> Iterator[FileResult[Found]]:
    """Yield what a task returns for each file, in the order in which they are done.

    A file with several hard links counts once; symbolic links in folders are not followed.
    """
    sources, failures = split_found(find_sources(roots))
    for failure in failures:
        yield FileResult(failure.name, crash=failure.reason)
    files = [source for source in sources if source.kind == "elf"]
    with results_of(task, files, size_of, count=jobs) as done:
        for number, result in done:
            yield FileResult(files[number].path, crash=result.reason) if isinstance(result, Lost) else result


def size_of(source: Source) -> int:
    """Return the bytes of a file."""
    return source.size


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent."""
    return f"{100 * part / whole:.3f} %" if whole else "none"


def table_lines(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows of cells as a table in Markdown, whose first row is the head."""
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|---|" + "---:|" * (len(row) - 1)


def unusable_lines(results: Iterable[FileResult[Found]]) -> Iterator[str]:
    """Yield how many files could not be used, by the reason."""
    for reason, count in Counter(result.unusable for result in results if result.unusable).most_common():
        yield f"{count:,} files: {reason}"
