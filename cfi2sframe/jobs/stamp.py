# SPDX-License-Identifier: Apache-2.0
"""A file that records which files were right at the end of a run, so that the next run need not read them.

A file is identified by device, inode, size and the times of its last change (of its bytes, and of its inode, which no
program can set back), and only for the same settings of the same version of this program. A file that the stamp does
not list is converted and compared, so losing the stamp only costs time.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Final

from cfi2sframe import __version__
from cfi2sframe.errors import InputError
from cfi2sframe.files.write import write_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.files.descriptors import FileState
    from cfi2sframe.jobs.records import Job, Outcome, Settings

#: The clocks of file systems tick at least this often (ns); a second change within a tick may not change the times.
_TICK_NS: Final = 20_000_000


class Stamp:
    """The files that the stamp at a path lists for these settings.

    Raises `OSError` when it cannot be read, `InputError` when it is not a regular file: writing would replace it.
    Create it before looking at any file: a file that changed just before then is not trusted.
    """

    def __init__(self, path: str, settings: Settings) -> None:
        self._path = path
        self._made_ns = time.time_ns()
        # These settings do not affect which bytes are right.
        kept = settings._replace(
            only_checks=False, wants_account=False, skips_unfit=False, is_in_tree=False, takes_objects=False
        )
        self._head = f"cfi2sframe stamp 1, version {__version__}, {kept!r}"
        self._known = frozenset(self._read())

    def _read(self) -> list[str]:
        try:
            with open(self._path, encoding="utf-8", errors="replace", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise InputError("not a regular file")
                head, *lines = file.read().splitlines() or [""]
        except FileNotFoundError:
            return []
        return lines if head == self._head else []

    def knows(self, job: Job) -> bool:
        """Whether a file has not changed since it was last found right."""
        return job.state is not None and _line(job.state) in self._known

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Write the stamp anew, with the files that are right now. Raises `OSError`."""
        lines = {_line(outcome.state) for outcome in outcomes if outcome.state is not None and self._is_sure(outcome)}
        text = "".join(f"{line}\n" for line in (self._head, *sorted(lines)))
        write_file([os.path.realpath(self._path)], text.encode())

    def _is_sure(self, outcome: Outcome) -> bool:
        """Whether the times would show any change since the file was looked at."""
        state = outcome.state
        if state is None:
            return False
        if outcome.status == "unchanged":
            return _line(state) in self._known or max(state.mtime_ns, state.ctime_ns) < self._made_ns - _TICK_NS
        # Its modification time was set back, so that a further change would make it newer.
        return outcome.status == "converted" and state.mtime_ns < state.ctime_ns - _TICK_NS


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, without waiting for a writer if it is a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _line(state: FileState) -> str:
    return f"{state.device} {state.inode} {state.size} {state.mtime_ns} {state.ctime_ns} {state.link_count}"
