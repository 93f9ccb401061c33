# SPDX-License-Identifier: Apache-2.0
"""A progress line on standard error, on a terminal only: files done, rate, and the time that is left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from cfi2sframe.report.size.sources import Measured

_INTERVAL_SECONDS: Final = 0.1
_BAR_WIDTH: Final = 24


class Progress:
    """The state of a run; files are done when they are done, time is guessed from their bytes."""

    def __init__(self, file_count: int, byte_count: int, start: float) -> None:
        self.file_count = file_count
        self.byte_count = byte_count
        self.start = start
        self.done_files = 0
        self.done_bytes = 0

    def add(self, size: int) -> None:
        """Count a file of that many bytes as done."""
        self.done_files += 1
        self.done_bytes += size

    def line(self, now: float) -> str:
        """Return the line to show."""
        share = self.done_bytes / self.byte_count if self.byte_count else 1.0
        elapsed = max(now - self.start, 1e-3)
        filled = round(share * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        text = f"[{bar}] {self.done_files:,} of {self.file_count:,} files, {self.done_files / elapsed:,.1f}/s"
        if 0 < share < 1:
            text += f", {_clock(elapsed * (1 - share) / share)} left"
        return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressLine:
    """The line while a run lasts; nothing at all when standard error is no terminal."""

    def __init__(self, file_count: int, byte_count: int) -> None:
        self._is_shown = sys.stderr.isatty()
        self._progress = Progress(file_count, byte_count, time.monotonic())
        self._shown_at = 0.0

    def add(self, size: int) -> None:
        """Count a file as done, and show that now and then."""
        if not self._is_shown:
            return
        self._progress.add(size)
        now = time.monotonic()
        if now - self._shown_at >= _INTERVAL_SECONDS:
            self._shown_at = now
            sys.stderr.write(f"\r{self._progress.line(now)}\033[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Make room for another line."""
        if self._is_shown:
            self._shown_at = 0.0
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()


def with_progress(results: Iterable[Measured], file_count: int, byte_count: int) -> Iterator[Measured]:
    """Pass results on, and show how far the run is when standard error is a terminal."""
    with ProgressLine(file_count, byte_count) as line:
        for result in results:
            line.add(result.source.size)
            yield result
