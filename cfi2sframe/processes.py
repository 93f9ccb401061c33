# SPDX-License-Identifier: Apache-2.0
"""Calls of a function shared out among copies of this process (fork); one that dies loses one call.

No interpreter is started: a new one would look for modules in other places, such as the current directory. Only
programs may use this, since they have no other threads; the caller of a library may have some.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, TypeVar

from cfi2sframe.guard import mapped_size
from cfi2sframe.interrupts import keep_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Item = TypeVar("Item")
Result = TypeVar("Result")

#: A task is the number of an item. A reply starts with the size of the result in bytes, and whether the worker waits
#: for another item.
_NUMBER: Final = struct.Struct("=Q")
_REPLY: Final = struct.Struct("=Q?")
#: The most small items (bytes) of a worker: with items in its queue it need not wait for this process.
_AHEAD_COUNT: Final = 4
_SMALL_SIZE: Final = 1 << 18
_READ_SIZE: Final = 1 << 20
#: A worker that has grown by this many bytes does not return its memory, and is replaced.
_MAX_GROWTH: Final = 256 << 20
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_FAILED: Final = 1
_SIGNALLED: Final = 128


class Lost(NamedTuple):
    """The result of an item whose process died: why."""

    reason: str


@contextmanager
def shared_out(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int], count: int
) -> Iterator[Iterator[tuple[int, Result | Lost]]]:
    """Have `count` processes call a function with each item; give the items' numbers and results as they are done.

    `function` raises nothing but `KeyboardInterrupt`, on SIGINT, SIGTERM or SIGHUP; its results can be pickled.
    `size_of` returns the bytes of input that an item is, 0 if that is unknown: the largest items come first.
    Leaving the context ends the processes: it interrupts those at work, and waits for all.
    """
    pool = _Pool(function, items, size_of, count)
    try:
        yield pool.results()
    finally:
        pool.end()


class _Worker(NamedTuple):
    """A process, the write end of its tasks, the read end of its replies, and its items; it works on the first."""

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
        #: Keyed by the descriptor of their replies.
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
                    # Out of processes or descriptors: without any worker, this process has to do the work.
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
                # If the caller of this program ignores SIGCHLD, the worker may be gone and reaped already.
                with suppress(ProcessLookupError):
                    os.kill(worker.process, signal.SIGTERM)
            while self._workers:
                self._bury(next(iter(self._workers.values())))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def _start(self, number: int) -> None:
        """Fork a worker that begins with this item. Raises `OSError`."""
        opened: list[int] = []
        # An interrupt must find either no worker, or one that is in `_workers` and has its handlers.
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
        """Return the reply of a worker, and give it more items."""
        head = _read(worker.replies, _REPLY.size)
        size, waits = _REPLY.unpack(head) if len(head) == _REPLY.size else (-1, False)
        data = _read(worker.replies, max(size, 0))
        worker.numbers.pop(0)
        if len(data) != size:
            return Lost(_cause(self._bury(worker)))
        if waits:
            self._hand_out(worker)
        if not (waits and worker.numbers):
            self._bury(worker)
        result: Result = pickle.loads(data)  # noqa: S301 - from a copy of this process
        return result

    def _hand_out(self, worker: _Worker) -> None:
        """Give a worker one large item, or queue some small ones."""
        while self._waiting and len(worker.numbers) < _AHEAD_COUNT:
            if worker.numbers and self._size_of(self._items[self._waiting[-1]]) > _SMALL_SIZE:
                break
            try:
                os.write(worker.tasks, _NUMBER.pack(self._waiting[-1]))
            except BrokenPipeError:
                break
            worker.numbers.append(self._waiting.pop())

    def _bury(self, worker: _Worker) -> int | None:
        """End a worker, wait for it, and requeue its items. Return its exit code, None if that is unknown."""
        self._waiting += reversed(worker.numbers)
        self._poll.unregister(worker.replies)
        del self._workers[worker.replies]
        os.close(worker.tasks)
        os.close(worker.replies)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        except ChildProcessError:
            # The caller of this program ignores SIGCHLD.
            return None

    def _work(
        self, number: int, tasks: int, replies: int, other_ends: tuple[int, int], signal_mask: set[int]
    ) -> NoReturn:
        """Run as a worker, to the end of its process."""
        status = _EXIT_FAILED
        try:
            # A worker's pipe ends with the program only if no other worker holds its other end.
            for descriptor in (
                *other_ends,
                *(end for other in self._workers.values() for end in (other.tasks, other.replies)),
            ):
                os.close(descriptor)
            this = _ThisWorker()
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
            with open(replies, "wb") as output:
                while True:
                    result = this.call(self._function, self._items[number])
                    data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
                    waits = not this.has_grown()
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
            # Not even an unexpected exception may run the rest of the program in this process.
            os._exit(status)


def _read(descriptor: int, size: int) -> bytes:
    """Read `size` bytes from a pipe, fewer at its end; unbuffered, since poll does not see buffered bytes."""
    parts: list[bytes] = []
    while size > 0:
        part = os.read(descriptor, min(size, _READ_SIZE))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _ThisWorker:
    """This process as a worker: when it is interrupted at work, it cleans up first."""

    def __init__(self) -> None:
        self._is_busy = False
        self._is_stopping = False
        self._size_at_start = mapped_size()
        # A process that is ended by a signal needs no core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        keep_interrupts()
        gc.disable()
        # Loaded modules stay; collections need not traverse them.
        gc.freeze()
        for number in _ENDING:
            # Signals that the caller has chosen to ignore stay ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)

    def call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Call a function; an interrupt ends the process after the function has cleaned up."""
        self._is_busy = True
        result = function(item)
        self._is_busy = False
        if self._is_stopping:
            # It came where it could not be raised, and the function returned before it was raised again.
            raise KeyboardInterrupt
        return result

    def has_grown(self) -> bool:
        """Whether this process has kept so much memory that a new one should replace it."""
        size = mapped_size()
        return size is not None and self._size_at_start is not None and size - self._size_at_start > _MAX_GROWTH

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal; further ones must not interrupt the clean-up."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if not self._is_busy:
            os._exit(_SIGNALLED + number)
        raise KeyboardInterrupt


def _cause(code: int | None) -> str:
    """Return why a worker died, from its exit code."""
    if code is None:
        return "the process that worked on it is gone"
    if code >= 0:
        return f"the process that worked on it ended with exit status {code}"
    return f"the process that worked on it was ended by signal {-code} ({signal.strsignal(-code)})"
