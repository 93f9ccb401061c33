# SPDX-License-Identifier: Apache-2.0
"""Calls of a function shared out among copies of this process, each under limits; one that dies loses one call.

The processes are copies (fork), so that no interpreter is started: one that starts looks for modules in places that
this one does not, such as the current directory. For programs, which have no other threads; a library's caller may.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, TypeVar

from cfi2sframe.interrupts import keep_interrupts
from cfi2sframe.limits import WorkerLimits, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Item = TypeVar("Item")
Result = TypeVar("Result")

#: The number of an item; the size of a result in bytes, and whether its worker waits for another item.
_NUMBER: Final = struct.Struct("=Q")
_REPLY: Final = struct.Struct("=Q?")
#: A worker has so many small items ahead of it, so that it need not wait for this process.
_AHEAD_COUNT: Final = 4
_SMALL_SIZE: Final = 1 << 18
_READ_SIZE: Final = 1 << 20
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_FAILED: Final = 1
_SIGNALLED: Final = 128


class Lost(NamedTuple):
    """What there is instead of a result, because the process that worked on it has died: why."""

    reason: str


@contextmanager
def shared_out(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int], count: int
) -> Iterator[Iterator[tuple[int, Result | Lost]]]:
    """Have `count` processes call a function with each item; give the items' numbers and results as they are done.

    `function` raises nothing but `KeyboardInterrupt`, on SIGINT, SIGTERM or SIGHUP, and its results can be pickled.
    `size_of` says how many bytes of input an item is, 0 if nobody knows: the largest come first, and the limits of CPU
    time and memory are in proportion. Leaving the context ends the processes: those at work are interrupted, and
    waited for.
    """
    pool = _Pool(function, items, size_of, count)
    try:
        yield pool.results()
    finally:
        pool.end()


class _Worker(NamedTuple):
    """A process: the pipe to it that carries numbers of items, the one from it, and its items: the first is at hand."""

    process: int
    tasks: int
    replies: int
    numbers: list[int]


class _Pool(Generic[Item, Result]):
    def __init__(
        self, function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int], count: int
    ) -> None:
        self._function = function
        self._items = items
        self._size_of = size_of
        self._count = count
        #: By the descriptor of their replies.
        self._workers: dict[int, _Worker] = {}
        self._waiting = sorted(range(len(items)), key=lambda number: size_of(items[number]))
        self._poll = select.poll()

    def results(self) -> Iterator[tuple[int, Result | Lost]]:
        """Start processes, and yield what each replies."""
        while self._waiting or self._workers:
            while self._waiting and len(self._workers) < self._count:
                number = self._waiting.pop()
                try:
                    self._start(number)
                except OSError:
                    # No more processes or descriptors than there are: with none at all, this one has to do it.
                    if self._workers:
                        self._waiting.append(number)
                        break
                    yield number, self._function(self._items[number])
            for descriptor, _ in self._poll.poll() if self._workers else ():
                worker = self._workers[descriptor]
                yield worker.numbers[0], self._receive(worker)

    def end(self) -> None:
        """End all processes and wait for them."""
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            for worker in self._workers.values():
                # It may be gone, and nobody's child, if whoever started this program ignores SIGCHLD.
                with suppress(ProcessLookupError):
                    os.kill(worker.process, signal.SIGTERM)
            while self._workers:
                self._bury(next(iter(self._workers.values())))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def _start(self, number: int) -> None:
        """Copy this process; the copy begins with the item of that number. Raises `OSError`."""
        opened: list[int] = []
        # An interrupt must find either no worker, or one that is noted here and knows what to do.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            opened += os.pipe()
            opened += os.pipe()
            tasks, tasks_end, replies_end, replies = opened
            process = os.fork()
            if process == 0:
                self._work(number, tasks, replies, (tasks_end, replies_end), previous)
            os.close(tasks)
            os.close(replies)
            self._workers[replies_end] = _Worker(process, tasks_end, replies_end, [number])
            self._poll.register(replies_end, select.POLLIN)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def _receive(self, worker: _Worker) -> Result | Lost:
        """Return the reply of a worker, and give it more to do."""
        head = _read(worker.replies, _REPLY.size)
        size, waits = _REPLY.unpack(head) if len(head) == _REPLY.size else (-1, False)
        data = _read(worker.replies, max(size, 0))
        number = worker.numbers.pop(0)
        if len(data) != size:
            return Lost(_cause(self._bury(worker), self._size_of(self._items[number])))
        if waits:
            self._hand_out(worker)
        if not (waits and worker.numbers):
            self._bury(worker)
        result: Result = pickle.loads(data)  # noqa: S301 - from a copy of this process
        return result

    def _hand_out(self, worker: _Worker) -> None:
        """Give a worker a large item, or some small ones ahead."""
        while self._waiting and len(worker.numbers) < _AHEAD_COUNT:
            if worker.numbers and self._size_of(self._items[self._waiting[-1]]) > _SMALL_SIZE:
                break
            try:
                os.write(worker.tasks, _NUMBER.pack(self._waiting[-1]))
            except BrokenPipeError:
                break
            worker.numbers.append(self._waiting.pop())

    def _bury(self, worker: _Worker) -> int | None:
        """Let a worker end, and wait for that; others get its items. Return its exit code, None if nobody knows it."""
        self._waiting += reversed(worker.numbers)
        self._poll.unregister(worker.replies)
        del self._workers[worker.replies]
        os.close(worker.tasks)
        os.close(worker.replies)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        except ChildProcessError:
            # Whoever started this program ignores SIGCHLD.
            return None

    def _work(
        self, number: int, tasks: int, replies: int, other_ends: tuple[int, int], signal_mask: set[int]
    ) -> NoReturn:
        """Do what a worker does, to the end of its process."""
        status = _EXIT_FAILED
        try:
            # Pipes end for workers when the program does, if no worker has its ends.
            for descriptor in (
                *other_ends,
                *(end for other in self._workers.values() for end in (other.tasks, other.replies)),
            ):
                os.close(descriptor)
            this = _ThisWorker()
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
            limits = WorkerLimits()
            with open(replies, "wb") as output:
                while True:
                    limits.grant(self._size_of(self._items[number]))
                    result = this.call(self._function, self._items[number])
                    data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
                    waits = not limits.has_grown()
                    output.write(_REPLY.pack(len(data), waits))
                    output.write(data)
                    output.flush()
                    word = os.read(tasks, _NUMBER.size) if waits else b""
                    if not word:
                        break
                    (number,) = _NUMBER.unpack(word)
            status = 0
        except KeyboardInterrupt:
            status = _SIGNALLED + signal.SIGINT
        finally:
            # Nothing of what belongs to the program itself is run, not even for an exception that nobody foresaw.
            os._exit(status)


def _read(descriptor: int, size: int) -> bytes:
    """Read from a pipe, and no more than that: poll does not know of what is read ahead. Fewer bytes at its end."""
    parts: list[bytes] = []
    while size > 0:
        part = os.read(descriptor, min(size, _READ_SIZE))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _ThisWorker:
    """This process as a worker: interrupted at work it cleans up, else it just ends."""

    def __init__(self) -> None:
        self._is_busy = False
        self._is_stopping = False
        keep_interrupts()
        gc.disable()
        # What is loaded stays; collections need not look at it.
        gc.freeze()
        for number in _ENDING:
            # What the caller has chosen to ignore stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)

    def call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Call a function; an interrupt ends the process when the function has cleaned up."""
        self._is_busy = True
        result = function(item)
        self._is_busy = False
        if self._is_stopping:
            # It came where it could not be raised, and the work was at its end before it was raised again.
            raise KeyboardInterrupt
        return result

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; further ones must not disturb the cleaning up."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if not self._is_busy:
            os._exit(_SIGNALLED + number)
        raise KeyboardInterrupt


def _cause(code: int | None, input_size: int) -> str:
    """Return why a worker died, from its exit code."""
    if code is None:
        return "the process that worked on it is gone"
    if code >= 0:
        return f"the process that worked on it ended with exit status {code}"
    if -code == signal.SIGXCPU:
        return f"more than {cpu_seconds(input_size):,} s of CPU time, too much for {input_size:,} bytes of input"
    return f"the process that worked on it was ended by signal {-code} ({signal.strsignal(-code)})"
