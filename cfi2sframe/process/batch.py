# SPDX-License-Identifier: Apache-2.0
"""Call a function with many items, in this process or in copies of it, any of which may die.

The copies are forked, because a new interpreter would look for modules elsewhere, such as in the current directory. So
they are for the command line, which has no other threads; the caller of a library may have some.

The pool of `concurrent.futures` would be shorter, but it may wait for ever when one of its processes is killed.
"""

import gc
import os
import resource
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.errors import reason_of
from cfi2sframe.process.interrupts import keep_interrupts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Reference cycles are collected after this many bytes of input: errors that are kept make some.
_COLLECT_SIZE: Final = 1 << 24
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED: Final = 128
#: Descriptors that must be free to start a process: more than it and an item in it need.
_DESCRIPTOR_COUNT: Final = 16
#: prctl(2).
_PR_SET_PDEATHSIG: Final = 1


class _Lost(NamedTuple):
    """The reason why an item has no result: its process died, or could not send it."""

    reason: str


def results_of(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    size_of: Callable[[Item], int],
    lost: Callable[[Item, str], Result],
    *,
    count: int = 1,
    on_done: Callable[[Item, Result], None] = lambda _item, _result: None,
) -> Generator[Result, None, None]:
    """Call a function with each item; yield the results in the order of the items.

    `count` copies of this process do it, or this process if `count` is 1. `function` returns what can be pickled, and
    raises only `KeyboardInterrupt`, as a copy does on SIGINT, SIGTERM or SIGHUP. `size_of` returns the size of an item
    in bytes of input (0: unknown); the largest items come first. `lost` makes the result of an item whose process has
    died, from the reason. `on_done` sees each item and its result at once, in any order. Closing the generator ends the
    processes.
    """
    uncollected = 0

    def work(index: int) -> Result:
        nonlocal uncollected
        if uncollected >= _COLLECT_SIZE:
            gc.collect()
            uncollected = 0
        uncollected += size_of(items[index])
        return function(items[index])

    indices = range(len(items))
    done: Iterator[tuple[int, Result | _Lost]] = ((index, work(index)) for index in indices)
    with ExitStack() as stack:
        if count > 1 and len(items) > 1:
            largest_first = sorted(indices, key=lambda index: -size_of(items[index]))
            done = stack.enter_context(closing(_in_processes(work, largest_first, count)))
        waiting: dict[int, Result] = {}
        position = 0
        for index, answer in done:
            item = items[index]
            waiting[index] = result = lost(item, answer.reason) if isinstance(answer, _Lost) else answer
            on_done(item, result)
            while position in waiting:
                yield waiting.pop(position)
                position += 1


def _in_processes(
    work: Callable[[int], Result], indices: Sequence[int], count: int
) -> Generator[tuple[int, Result | _Lost], None, None]:
    """Yield the results of items with their indices, in any order."""
    waiting = deque(indices)
    lost: list[tuple[int, _Lost]] = []
    with closing(_share(work, waiting, count)) as results:
        for index, result in results:
            if isinstance(result, _Lost):
                lost.append((index, result))
            else:
                yield index, result
    # Another process may have taken the memory: try each item again in a process of its own.
    for index, reason in sorted(lost):
        yield from list(_share(work, deque([index]), 1)) or [(index, reason)]
    # No process could be started, or none stayed alive.
    yield from ((index, work(index)) for index in waiting)


def _share(
    work: Callable[[int], Result], waiting: deque[int], count: int
) -> Generator[tuple[int, Result | _Lost], None, None]:
    """Take indices from `waiting` and share them among processes, as long as there are any; yield the results."""
    import ctypes  # noqa: F401 - for the copies of this process
    from multiprocessing import get_context
    from multiprocessing.connection import wait

    context = get_context("fork")
    workers: dict[Connection, BaseProcess] = {}
    at_work: dict[Connection, int] = {}

    def start() -> None:
        # An interrupt must find either no process, or one that has its handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            ours, theirs = _pipe()
            with theirs:
                process = context.Process(target=_serve, args=(work, theirs, (ours, *workers), os.getpid(), mask))
                process.start()
            workers[ours] = process
        except BrokenPipeError:
            # What this process had printed before the fork has lost its reader.
            raise
        except OSError:
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        for _ in range(min(count, len(waiting))):
            start()
        while at_work or (waiting and workers):
            ready = wait(list(workers))
            for worker in [worker for worker in workers if worker in ready]:
                index = at_work.pop(worker, None)
                try:
                    result = worker.recv()
                except (EOFError, OSError):
                    process = workers.pop(worker)
                    process.join()
                    worker.close()
                    if index is not None:
                        start()
                        yield index, _Lost(_cause(process.exitcode))
                    continue
                if waiting:
                    at_work[worker] = waiting.popleft()
                    # The next `wait` reports a worker that has died meanwhile.
                    with suppress(OSError):
                        worker.send(at_work[worker])
                if index is not None:
                    yield index, result
    finally:
        for process in workers.values():
            process.terminate()
        for worker, process in workers.items():
            worker.close()
            process.join()


def _pipe() -> "tuple[Connection, Connection]":
    """Return a pipe's ends. Raises `OSError` if a process could open too few files: this one then does its items."""
    from multiprocessing import Pipe

    with ExitStack() as reserved:
        for _ in range(_DESCRIPTOR_COUNT):
            reserved.callback(os.close, os.dup(0))
    return Pipe()


def _cause(code: int | None) -> str:
    """Return why a process died, from its exit code."""
    if code is None:
        return "worker is gone"
    if code >= 0:
        return f"worker ended with exit status {code}"
    hint = "out of memory?" if -code == signal.SIGKILL else signal.strsignal(-code)
    return f"worker killed by signal {-code} ({hint})"


def _serve(
    work: Callable[[int], object], pipe: "Connection", inherited: "Sequence[Connection]", parent: int, mask: set[int]
) -> None:
    """Be a worker: receive indices of items and send results, after a `None` that says that it is ready.

    A worker does not survive its parent. An interrupt ends it after the function has cleaned up.
    """
    import ctypes

    is_stopping = False

    def handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for signal_number in ending:
            signal.signal(signal_number, handler)

    def stop(_signal_number: int, _frame: FrameType | None) -> None:
        # Further signals must not interrupt the clean-up.
        nonlocal is_stopping
        is_stopping = True
        handle(signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        # A pipe ends only when no process holds the other end of it.
        for other in inherited:
            other.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
        # No core files of workers.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        keep_interrupts()
        gc.disable()
        # Loaded modules stay; collections need not traverse them.
        gc.freeze()
        # Signals that the caller has chosen to ignore stay ignored.
        ending = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
        handle(signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        pipe.send(None)
        while True:
            index = pipe.recv()
            handle(stop)
            result = work(index)
            # While it waits, a worker has no handlers: Python's would not run if the signal came just before read(2).
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            handle(signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if is_stopping:
                # The interrupt was lost in a callback, and the function returned before it was raised again.
                return
            try:
                pipe.send(result)
            except Exception as error:  # noqa: BLE001 - such as a result that cannot be sent
                pipe.send(_Lost(reason_of(error)))
    finally:
        os._exit(_SIGNALLED + signal.SIGINT)
