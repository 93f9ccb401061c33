# SPDX-License-Identifier: Apache-2.0
"""A progress line on standard error, if that is a terminal: files done, rate, and the remaining time."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

_INTERVAL_SECONDS: Final = 0.1
_BAR_WIDTH: Final = 24


class Progress:
    """The state of a run; the remaining time is estimated from the bytes of the files."""

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
    """The line during a run; nothing is shown if standard error is not a terminal."""

    def __init__(self, file_count: int, byte_count: int) -> None:
        self._is_shown = sys.stderr.isatty()
        self._progress = Progress(file_count, byte_count, time.monotonic())
        self._shown_at = 0.0

    def add(self, size: int) -> None:
        """Count a file as done, and update the line at intervals."""
        if not self._is_shown:
            return
        self._progress.add(size)
        now = time.monotonic()
        if now - self._shown_at >= _INTERVAL_SECONDS:
            self._shown_at = now
            sys.stderr.write(f"\r{self._progress.line(now)}\033[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Clear the line, to print another one."""
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
