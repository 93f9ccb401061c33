# SPDX-License-Identifier: Apache-2.0
"""How far a run is, on standard error: a line every ten seconds; on a terminal, one line redrawn or a bar of tqdm."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from cfi2sframe.cli.messages import PROGRAM, Voice
from cfi2sframe.process.batch import results_of
from cfi2sframe.text import printable

if TYPE_CHECKING:
    from typing import TypeVar

    from cfi2sframe.files.find import Source
    from cfi2sframe.jobs.records import Job

    Item = TypeVar("Item", Job, Source)
    Result = TypeVar("Result")

_STANDARD_ERROR: Final = 2
#: When this variable is "never", nothing is shown.
_VARIABLE: Final = "CFI2SFRAME_PROGRESS"
#: Seconds until the first line, and between lines.
_FIRST_SECONDS: Final = 2.0
_INTERVAL_SECONDS: Final = 10.0
_TERMINAL_INTERVAL_SECONDS: Final = 1.0
#: Return to the start of a terminal's line, and erase it.
_ERASE: Final = "\r\033[K"
#: The share of the bytes that must be done before the time left is guessed.
_MIN_SHARE: Final = 0.1


class _Shown:
    """The run whose progress is shown, and whether a terminal has a line about it, without a line end."""

    files: "Files | None" = None
    is_drawn = False


class Files:
    """The files of a run: their sizes in bytes by name, in the order in which work on them begins."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._left = dict(sizes)
        self._count = len(sizes)
        self._size = sum(sizes.values())
        self._start = time.monotonic()
        self._bar = _bar(self._size) if self._count > 1 else None

    def add(self, name: str) -> None:
        """Count a file as done."""
        size = self._left.pop(name, 0)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._count - len(self._left):,} of {self._count:,} files", refresh=False)
            self._bar.update(size)

    def clear(self) -> None:
        """Remove the bar or the line, to print something else."""
        if self._bar is not None:
            self._bar.clear()
        if _Shown.is_drawn:
            _Shown.is_drawn = False
            os.write(_STANDARD_ERROR, _ERASE.encode())

    def line(self) -> str:
        """Return how far the run is; nothing where a bar shows it."""
        if self._bar is not None:
            return ""
        name = next(iter(self._left), "")
        if self._count < 2:
            return f"processing {name}" if name else ""
        done = self._size - sum(self._left.values())
        text = f"{self._count - len(self._left):,} of {self._count:,} files"
        if self._size * _MIN_SHARE <= done < self._size:
            seconds = (time.monotonic() - self._start) * (self._size - done) / done
            text += f", about {seconds:,.0f} s left"
        return f"{text}, processing {name}" if name else text

    def __enter__(self) -> Self:
        _Shown.files = self
        return self

    def __exit__(self, *_: object) -> None:
        _Shown.files = None
        self.clear()
        if self._bar is not None:
            self._bar.close()


def watched(
    function: "Callable[[Item], Result]",
    items: "Sequence[Item]",
    lost: "Callable[[Item, str], Result]",
    *,
    count: int,
    on_done: "Callable[[Item, Result], None]" = lambda _item, _result: None,
) -> "Generator[Result, None, None]":
    """Yield the results of `batch.results_of`, and show how far the run is. The caller may print after each result."""
    begun = items if count < 2 else sorted(items, key=lambda item: item.size, reverse=True)
    with Files({item.name: item.size for item in begun}) as files:

        def note(item: "Item", result: "Result") -> None:
            on_done(item, result)
            files.add(item.name)

        with closing(results_of(function, items, attrgetter("size"), lost, count=count, on_done=note)) as results:
            for result in results:
                files.clear()
                yield result


def _bar(size: int) -> Any:  # noqa: ANN401 - tqdm has no types
    """Return a bar that appears when the run has taken a while; None without a terminal or tqdm."""
    if not sys.stderr.isatty() or _is_off():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    # Processes are forked from this one, which must have no thread that watches for slow bars.
    tqdm.monitor_interval = 0
    return tqdm(total=size, unit="B", unit_scale=True, delay=_FIRST_SECONDS, leave=False, dynamic_ncols=True)


def _is_off() -> bool:
    return os.environ.get(_VARIABLE) == "never" or Voice.is_quiet


@contextmanager
def ticking(verb: str) -> Iterator[None]:
    """Print lines about a run that takes long."""
    start, is_terminal = time.monotonic(), sys.stderr.isatty()

    def tick(_number: int, _frame: FrameType | None) -> None:
        text = verb if _Shown.files is None else _Shown.files.line()
        if text and not _is_off():
            line = f"{PROGRAM}: info: {printable(text)} ({time.monotonic() - start:,.0f} s)"
            # A verb without files may print at any time.
            _Shown.is_drawn = is_terminal and _Shown.files is not None
            if _Shown.is_drawn:
                line = _ERASE + line[: os.get_terminal_size(_STANDARD_ERROR).columns - 1]
            else:
                line += "\n"
            # The interrupted code may hold the lock of sys.stderr.
            os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))

    try:
        previous = signal.signal(signal.SIGALRM, tick)
    except ValueError:
        # Only the main thread may install handlers.
        yield
        return
    interval = _TERMINAL_INTERVAL_SECONDS if is_terminal else _INTERVAL_SECONDS
    signal.setitimer(signal.ITIMER_REAL, _FIRST_SECONDS, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
