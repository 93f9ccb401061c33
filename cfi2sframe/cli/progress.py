# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a run: on a terminal one line, redrawn each second, to which tqdm, if installed, adds a bar.

Elsewhere, a run over several files prints a line a minute, so that a log tells which file takes so long.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

from cfi2sframe.cli.messages import PROGRAM, MessageStyle, is_dumb
from cfi2sframe.process.batch import results_of
from cfi2sframe.text import printable

if TYPE_CHECKING:
    from typing import TypeVar

    from cfi2sframe.files.source import Source

    Result = TypeVar("Result")

_STANDARD_ERROR: Final = 2
#: When this variable is "never", nothing is shown.
_VARIABLE: Final = "CFI2SFRAME_PROGRESS"
#: Seconds until the line is drawn, and until it is drawn again.
_FIRST_SECONDS: Final = 2.0
_INTERVAL_SECONDS: Final = 1.0
#: Seconds between two lines where there is no terminal.
_LOG_SECONDS: Final = 60.0
#: Columns of tqdm's bar, with what is around it.
_BAR_WIDTH: Final = 14
#: Return to the start of a terminal's line, and erase it.
_ERASE: Final = "\r\033[K"
#: The share of the bytes that must be done before the time left is guessed.
_MIN_SHARE: Final = 0.1


class Files:
    """The files of a run: their sizes in bytes by name, in the order in which work on them begins."""

    #: The run whose progress is shown.
    shown: "Files | None" = None

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._left = dict(sizes)
        self._count = len(sizes)
        self._size = sum(sizes.values())
        self._start = self._logged = time.monotonic()
        self._bar = _bar(self._size) if self._count > 1 else None
        self._is_drawn = False

    def add(self, name: str) -> None:
        """Count a file as done."""
        size = self._left.pop(name, 0)
        if self._bar is not None:
            self._bar.update(size)

    def draw(self) -> None:
        """Draw the line, with the bar, in place of the one before. A signal handler calls this."""
        text, width = f"{PROGRAM}: {printable(self.line())}", os.get_terminal_size(_STANDARD_ERROR).columns - 1
        self._is_drawn = True
        if self._bar is not None:
            self._bar.set_description_str(text[: width - _BAR_WIDTH])
        else:
            # The interrupted code may hold the lock of sys.stderr.
            os.write(_STANDARD_ERROR, f"{_ERASE}{text[:width]}".encode("utf-8", "backslashreplace"))

    def log(self) -> None:
        """Print the line if a minute has passed since the last one. A signal handler calls this."""
        if self._count > 1 and time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            line = f"{PROGRAM}: info: {printable(self.line())}\n"
            os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))

    def clear(self) -> None:
        """Remove the line, to print something else."""
        if self._is_drawn:
            self._is_drawn = False
            os.write(_STANDARD_ERROR, _ERASE.encode())

    def line(self) -> str:
        """Return the text of the line: numbers first, and the file that has been worked on longest last.

        The share is one of bytes, not files, since the largest files come first.
        """
        seconds = time.monotonic() - self._start
        name = os.path.basename(next(iter(self._left), ""))
        done = self._size - sum(self._left.values())
        text = "" if self._count < 2 else f"{100 * done // max(self._size, 1)} % of {self._count:,} files, "
        text += f"{seconds:,.0f} s, "
        if self._count > 1 and self._size * _MIN_SHARE <= done < self._size:
            text += f"{seconds * (self._size - done) / done:,.0f} s left, "
        return f"{text}processing {name}"

    def __enter__(self) -> Self:
        Files.shown = self
        return self

    def __exit__(self, *_: object) -> None:
        Files.shown = None
        self.clear()


def watched(
    work: "Callable[[Source], Result]",
    sources: "Sequence[Source]",
    lost: "Callable[[Source, str], Result]",
    *,
    count: int,
    on_done: "Callable[[Result], None]" = lambda _: None,
) -> "Generator[Result, None, None]":
    """Work on each file in `count` processes, as `batch.results_of` does, and show how far the run is.

    Yield the results in the order of the files. The caller may print after each.
    """
    if any(source.is_stream for source in sources):
        # They are read in this process.
        count = 1
    begun = sources if count < 2 else sorted(sources, key=attrgetter("size"), reverse=True)
    with Files({source.name: source.size for source in begun}) as files:

        def note(source: "Source", result: "Result") -> None:
            on_done(result)
            files.add(source.name)

        with closing(results_of(work, sources, attrgetter("size"), lost, count=count, on_done=note)) as results:
            for result in results:
                files.clear()
                yield result


def _bar(size: int) -> Any:  # noqa: ANN401 - tqdm has no types
    """Return a bar that is drawn when its text is set; None without a terminal or without tqdm."""
    if not (_is_wanted() and _has_terminal()):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    # Processes are forked from this one, which must have no thread that watches for slow bars.
    tqdm.monitor_interval = 0
    return tqdm(total=size, bar_format=f"{{desc}} |{{bar:{_BAR_WIDTH - 4}}}|", delay=math.inf, leave=False)


def _is_wanted() -> bool:
    return os.environ.get(_VARIABLE) != "never" and not MessageStyle.is_quiet


def _has_terminal() -> bool:
    return sys.stderr.isatty() and not is_dumb()


@contextmanager
def ticking() -> Iterator[None]:
    """Draw the progress of a run that takes long."""

    def tick(_number: int, _frame: FrameType | None) -> None:
        if Files.shown is not None and _is_wanted():
            (Files.shown.draw if _has_terminal() else Files.shown.log)()

    try:
        previous = signal.signal(signal.SIGALRM, tick)
    except ValueError:
        # Only the main thread may install handlers.
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _FIRST_SECONDS, _INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
