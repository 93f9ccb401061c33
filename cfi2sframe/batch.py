# SPDX-License-Identifier: Apache-2.0
"""Call a function with many items: in this process, or in copies of it. An item whose process dies is `Lost`.

The processes are forked: a new interpreter would look for modules in other places, such as the current directory. So
only programs may use them, since they have no other threads; the caller of a library may have some.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from cfi2sframe.errors import reason_of
from cfi2sframe.interrupts import keep_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Future
    from multiprocessing.synchronize import Event
    from types import FrameType

Item = TypeVar("Item")
Result = TypeVar("Result")

#: After this many bytes of input, reference cycles are collected.
_COLLECT_SIZE: Final = 1 << 24
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED: Final = 128
#: The most items of one pool: each takes a few bytes of a pipe that a busy process empties late.
_ROUND_COUNT: Final = 4096
#: prctl(2).
_PR_SET_PDEATHSIG: Final = 1


class Lost(NamedTuple):
    """The result of an item whose process died: why."""

    reason: str


@contextmanager
def results_of(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int], *, count: int = 1
) -> Iterator[Iterator[tuple[int, Result | Lost]]]:
    """Call a function with each item; give the items' numbers and results as they are done.

    `count` copies of this process work on them, or this process if `count` is 1. `function` raises nothing but
    `KeyboardInterrupt`, which a copy raises on SIGINT, SIGTERM or SIGHUP; its results can be pickled. `size_of` returns
    the bytes of input that an item is, 0 if that is unknown: processes get the largest items first. Leaving the context
    ends the processes.
    """
    work = _Work(function, items, size_of)
    numbers = range(len(items))
    if count < 2 or len(items) < 2:
        yield ((number, work(number)) for number in numbers)
        return
    results = _in_processes(work, sorted(numbers, key=lambda number: -size_of(items[number])), count)
    try:
        yield results
    finally:
        results.close()


def outcomes_of(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    size_of: Callable[[Item], int],
    lost: Callable[[Item, str], Result],
    *,
    count: int,
    on_done: Callable[[Item, Result], None],
) -> Generator[Result, None, None]:
    """Yield the results of `results_of` in the order of the items; that of a lost item is what `lost` returns.

    `on_done` sees each item and its result as soon as it is known. Closing the generator ends the processes.
    """
    waiting: dict[int, Result] = {}
    position = 0
    with results_of(function, items, size_of, count=count) as results:
        for number, found in results:
            item = items[number]
            waiting[number] = result = lost(item, found.reason) if isinstance(found, Lost) else found
            on_done(item, result)
            while position in waiting:
                yield waiting.pop(position)
                position += 1


class _Work:
    """What is to be called; items are named by their numbers, because copies of this process have them already."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], size_of: Callable[[Any], int]) -> None:
        self.function, self.items, self.size_of = function, items, size_of
        self._uncollected = 0

    def __call__(self, number: int) -> Any:  # noqa: ANN401 - the type of the results does not matter here
        result = self.function(self.items[number])
        self._uncollected += self.size_of(self.items[number])
        if self._uncollected >= _COLLECT_SIZE:
            gc.collect()
            self._uncollected = 0
        return result


def _in_processes(work: _Work, waiting: list[int], count: int) -> Generator[tuple[int, Any], None, None]:
    from mmap import mmap

    # Memory that all processes share: the numbers of the items that have been begun.
    begun = mmap(-1, len(work.items))
    while waiting:
        numbers, later = waiting[:_ROUND_COUNT], waiting[_ROUND_COUNT:]
        left, _ = yield from _run(work, numbers, count, begun)
        # A pool with a dead process is lost. What was worked on is done again, each item in a process of its own.
        suspects = [number for number in left if begun[number]]
        for number in suspects:
            lost, cause = yield from _run(work, [number], 1, begun)
            if lost:
                yield number, Lost(cause)
        if left == numbers and not suspects:
            # No process can be started, or none stays alive.
            yield from ((number, work(number)) for number in waiting)
            return
        waiting = [number for number in left if not begun[number]] + later


def _run(
    work: _Work,
    numbers: list[int],
    count: int,
    begun: Any,  # noqa: ANN401 - a writable buffer
) -> Generator[tuple[int, Any], None, tuple[list[int], str]]:
    """Run items in a pool until they are done or a process dies; return what is left, and why.

    All of it is left if no process can be started.
    """
    import ctypes  # noqa: F401 - for the copies of this process
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    context = get_context("fork")
    pool: ProcessPoolExecutor | None = None
    gate: Event | None = None
    processes: list[Any] = []
    futures: dict[Future[Any], int] = {}
    left = set(numbers)
    is_over = False
    # An interrupt must find either no process, or one that has its handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        try:
            # A pool to which items are submitted while it loses a process may never report them.
            gate = context.Event()
            start = (work, begun, gate, os.getpid(), mask)
            pool = ProcessPoolExecutor(min(count, len(numbers)), context, _begin, start)
            # The first item forks all processes.
            futures = {pool.submit(_call, number): number for number in numbers}
        except BrokenPipeError:
            # The reader of what this process had printed before the fork is gone.
            raise
        except (OSError, BrokenProcessPool):
            pass
        finally:
            processes = active_children()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if futures and gate is not None:
            gate.set()
        for number, result in _received(futures):
            left.discard(number)
            yield number, result
        is_over = True
    finally:
        if left:
            for process in processes:
                process.terminate()
        if left and not is_over:
            for process in processes:
                process.join()
        if pool is not None:
            # After an interrupt, the pool may wait for the rest of a result.
            pool.shutdown(wait=is_over, cancel_futures=True)
    return [number for number in numbers if number in left], _cause([process.exitcode for process in processes])


def _received(futures: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and results of items as they are done, but nothing of those that a dead process leaves."""
    from concurrent.futures.process import BrokenProcessPool
    from queue import SimpleQueue

    done: SimpleQueue[Future[Any]] = SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    for _ in futures:
        future = done.get()
        try:
            yield futures[future], future.result()
        except BrokenProcessPool:
            pass
        except Exception as error:  # noqa: BLE001 - such as a result that cannot be sent
            yield futures[future], Lost(reason_of(error))


def _cause(codes: Sequence[int | None]) -> str:
    """Return why a process died, from its exit code."""
    code = next((code for code in codes if code), None)
    if code is None:
        return "worker is gone"
    if code > 0:
        return f"worker ended with exit status {code}"
    hint = "out of memory?" if -code == signal.SIGKILL else signal.strsignal(-code)
    return f"worker killed by signal {-code} ({hint})"


# In a process of the pool


class _State:
    """What a process of the pool knows. `ending` are the signals that end it."""

    work: _Work
    begun: Any
    ending: tuple[signal.Signals, ...]
    is_stopping = False


def _begin(
    work: _Work,
    begun: Any,  # noqa: ANN401 - a writable buffer
    gate: Event,
    parent: int,
    mask: set[int],
) -> None:
    """Get ready for items: a process of the pool does not survive its parent, and cleans up when it is interrupted."""
    import ctypes
    import resource

    _State.work, _State.begun = work, begun
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(_SIGNALLED + signal.SIGTERM)
    # A process that is ended by a signal needs no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    keep_interrupts()
    gc.disable()
    # Loaded modules stay; collections need not traverse them.
    gc.freeze()
    # Signals that the caller has chosen to ignore stay ignored.
    _State.ending = tuple([number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN])
    _handle(signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gate.wait()


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _State.ending:
        signal.signal(number, handler)


def _call(number: int) -> Any:  # noqa: ANN401 - the type of the results does not matter here
    """Work on an item. An interrupt ends the process after the function has cleaned up."""
    try:
        _handle(_stop)
        _State.begun[number] = 1
        result = _State.work(number)
        # A process that waits for an item has no handlers: one of Python's does not run if the signal comes just before
        # the system call.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        _handle(signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except KeyboardInterrupt:
        os._exit(_SIGNALLED + signal.SIGINT)
    if _State.is_stopping:
        # It came where it could not be raised, and the function returned before it was raised again.
        os._exit(_SIGNALLED + signal.SIGINT)
    return result


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal; further ones must not interrupt the clean-up."""
    _State.is_stopping = True
    _handle(signal.SIG_IGN)
    raise KeyboardInterrupt
