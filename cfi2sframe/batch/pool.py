# SPDX-License-Identifier: Apache-2.0
"""The executors of the command line: a pool of processes that can be interrupted, or one that the user names.

An interrupted worker takes back the file that it was writing before it ends, so that no temporary file stays.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.batch.runner import run_jobs
from cfi2sframe.errors import RequestError
from cfi2sframe.interrupts import keep_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from types import FrameType

    from cfi2sframe.batch.records import Job, Outcome

_PRELOADED: Final = ["cfi2sframe.batch.preload"]


class _Worker:
    """This process as one of a pool: interrupted at work it cleans up, else it just ends."""

    def __init__(self) -> None:
        self.is_busy = False
        self.is_stopping = False

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; further ones must not disturb the cleaning up."""
        if self.is_stopping:
            return
        self.is_stopping = True
        if not self.is_busy:
            os._exit(128 + number)
        raise KeyboardInterrupt


_worker: Final = _Worker()


def _start_worker() -> None:
    keep_interrupts()
    gc.disable()
    # What is loaded stays; collections need not look at it.
    gc.freeze()
    signal.signal(signal.SIGINT, _worker.stop)
    signal.signal(signal.SIGTERM, _worker.stop)


def run_in_worker(jobs: tuple[Job, ...]) -> tuple[Outcome, ...]:
    """Run jobs in a process of `process_pool`; an interrupt ends the process when the file at hand is taken back."""
    try:
        _worker.is_busy = True
        outcomes = run_jobs(jobs)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    finally:
        _worker.is_busy = False
    if _worker.is_stopping:
        # It came where it could not be raised, and the jobs were at their end before it was raised again.
        os._exit(128 + signal.SIGINT)
    return outcomes


@contextmanager
def process_pool(worker_count: int) -> Iterator[Executor]:
    """Make a pool of processes; leaving it by an exception, an interrupt too, ends what they are doing.

    What is submitted must be `run_in_worker`.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    # None starts as a copy of a process that has threads or open files, and all share what is loaded only once.
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    others = set(active_children())
    pool = ProcessPoolExecutor(worker_count, context, _start_worker)
    try:
        yield pool
    except BaseException:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in set(active_children()) - others:
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        signal.signal(signal.SIGINT, previous)
        raise
    pool.shutdown()


def load_factory(text: str) -> Callable[..., Executor]:
    """Return what `MODULE:CALLABLE` names: a factory of executors. Raises `RequestError` without it."""
    from importlib import import_module

    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name):
        raise RequestError(f"not MODULE:CALLABLE: {text!r}")
    try:
        found: object = import_module(module_name)
    except ImportError as error:
        raise RequestError(f"executor {text!r}: {error}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise RequestError(f"executor {text!r}: module {module_name!r} has no callable {name!r}")
    return found
