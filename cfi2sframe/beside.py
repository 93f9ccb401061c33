# SPDX-License-Identifier: Apache-2.0
"""What another process computes while this one goes on: a copy of this one, so that nothing has to be sent to it.

An offer, never a need: what cannot be had so (no process, no memory, one that was killed), the caller computes.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


class Beside:
    """The result of `work`, called in a process beside this one. `pickle` has to be able to carry it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._process = 0
        self._memory = -1
        if not _can_be_copied():
            return
        try:
            self._memory = os.memfd_create("result")
            self._process = os.fork()
        except OSError:
            self.stop()
            return
        if self._process == 0:
            _work(work, self._memory)

    def result(self) -> object:
        """Wait for the result, and return it; None where there is none. To be called once."""
        if not self._process:
            return None
        has_succeeded = _has_succeeded(self._process)
        self._process = 0
        try:
            if not has_succeeded:
                return None
            import pickle

            with open(self._memory, "rb", closefd=False) as file:
                file.seek(0)
                made: object = pickle.load(file)  # noqa: S301 - what this program has written
                return made
        finally:
            self.stop()

    def stop(self) -> None:
        """End the other process, if there is one still. May be called at any time."""
        process, self._process = self._process, 0
        if process:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            _has_succeeded(process)
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)


def _has_succeeded(process: int) -> bool:
    """Wait for a process to end; whether it has ended well. Nobody knows where the caller ignores SIGCHLD."""
    try:
        return os.waitpid(process, 0)[1] == 0
    except ChildProcessError:
        return False


def _can_be_copied() -> bool:
    """Whether there can be a copy that works: of other threads only what they hold would be there."""
    threading = sys.modules.get("threading")
    return hasattr(os, "memfd_create") and (threading is None or threading.active_count() == 1)


def _work(work: Callable[[], object], memory: int) -> NoReturn:
    """Be the other process: leave the result, and say nothing, whatever happens."""
    status = 1
    try:
        import pickle

        # What the copied handlers would take back is the parent's.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with open(memory, "wb", closefd=False) as file:
            pickle.dump(work(), file, protocol=5)
        status = 0
    finally:
        # Without the exception, which is for the one who computes it again, and without buffers and exit handlers.
        os._exit(status)
