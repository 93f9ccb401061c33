# SPDX-License-Identifier: Apache-2.0
"""Call a function with many items: in this process, in copies of it, or on an executor of `concurrent.futures`.

An item that is lost with its process has the result `Lost`, wherever it runs.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from cfi2sframe.processes import Lost

Item = TypeVar("Item")
Result = TypeVar("Result")

#: An executor's task is a few small items or one large one (bytes of input): sending it costs a tenth of a small file.
_TASK_SIZE: Final = 1 << 18
_TASK_ITEM_COUNT: Final = 16
#: No task holds more than this share of the items, so that a few items are shared out as well.
_TASK_SHARE: Final = 32
#: After this many bytes of input, reference cycles are collected.
_COLLECT_SIZE: Final = 1 << 20
_SAFE_PATH: Final = "PYTHONSAFEPATH"


@contextmanager
def results_of(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    size_of: Callable[[Item], int],
    *,
    count: int = 1,
    executor: Executor | None = None,
) -> Iterator[Iterator[tuple[int, Result | Lost]]]:
    """Call a function with each item; give the items' numbers and results as they are done, in any order.

    An executor works on them if there is one; otherwise `count` copies of this process, or this process if `count` is
    1. `function` raises nothing but `KeyboardInterrupt`. `size_of` returns the bytes of input that an item is, 0 if
    that is unknown: processes and executors get the largest items first, and the limits of a process are in proportion
    (`cfi2sframe.limits`). Leaving the context ends the processes; the caller ends the executor.
    """
    if executor is not None:
        yield _by_executor(function, items, size_of, executor)
    elif count > 1 and len(items) > 1:
        from cfi2sframe.processes import shared_out

        with shared_out(function, items, size_of, count) as results:
            yield results
    else:
        yield enumerate(_called(function, items, size_of))


def in_order(results: Iterator[tuple[int, Result]]) -> Iterator[Result]:
    """Yield numbered results, which come in any order, in the order of their numbers."""
    waiting: dict[int, Result] = {}
    position = 0
    for number, result in results:
        waiting[number] = result
        while position in waiting:
            yield waiting.pop(position)
            position += 1


def _called(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int]
) -> Iterator[Result]:
    pending = 0
    for item in items:
        yield function(item)
        pending += size_of(item)
        if pending >= _COLLECT_SIZE:
            gc.collect()
            pending = 0


class Task(NamedTuple):
    """Neighbouring items that an executor works on together: the numbers of the first and of the one after the last."""

    first: int
    end: int
    size: int


def tasks_of(sizes: Sequence[int]) -> list[Task]:
    """Group items of these sizes (bytes) into tasks; each item is in one of them."""
    limit = max(1, min(_TASK_ITEM_COUNT, len(sizes) // _TASK_SHARE))
    tasks: list[Task] = []
    first = total = 0
    for number, size in enumerate(sizes):
        if number > first and (total + size > _TASK_SIZE or number - first >= limit):
            tasks.append(Task(first, number, total))
            first, total = number, 0
        total += size
    if sizes:
        tasks.append(Task(first, len(sizes), total))
    return tasks


def run_task(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int]
) -> tuple[Result, ...]:
    """Call a function with the items of a task; this is what an executor's worker does."""
    return tuple(_called(function, items, size_of))


def _by_executor(
    function: Callable[[Item], Result], items: Sequence[Item], size_of: Callable[[Item], int], executor: Executor
) -> Iterator[tuple[int, Result | Lost]]:
    from concurrent.futures import BrokenExecutor, as_completed

    from cfi2sframe.processes import Lost

    waiting = sorted(tasks_of([size_of(item) for item in items]), key=lambda task: task.size)
    futures = {}
    reason = ""
    while waiting and not reason:
        task = waiting.pop()
        try:
            futures[executor.submit(run_task, function, items[task.first : task.end], size_of)] = task
        except BrokenExecutor as error:
            waiting.append(task)
            reason = _reason_of_loss(error)
    for task in waiting:
        yield from ((number, Lost(reason)) for number in range(task.first, task.end))
    for future in as_completed(list(futures)):
        task = futures.pop(future)
        failure = _error_of(future)
        if failure is None:
            yield from enumerate(future.result(), task.first)
        else:
            lost = Lost(_reason_of_loss(failure))
            yield from ((number, lost) for number in range(task.first, task.end))


def _error_of(future: Future[tuple[Result, ...]]) -> BaseException | None:
    """Return the executor's own error; the function that it calls raises nothing."""
    from concurrent.futures import CancelledError

    try:
        return future.exception()
    except CancelledError as error:
        return error


def _reason_of_loss(error: BaseException) -> str:
    return f"the executor lost it ({type(error).__name__}: {error})"


def load_factory(text: str) -> Callable[..., Executor]:
    """Return the factory of executors named `MODULE:CALLABLE`. Raises `RequestError` if there is none.

    The module is imported like this program's own modules: from PYTHONPATH and installed packages.
    """
    from importlib import import_module

    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name):
        raise RequestError(f"not MODULE:CALLABLE: {text!r}")
    try:
        found: object = import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        raise RequestError(f"executor {text!r}: {error}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise RequestError(f"executor {text!r}: module {module_name!r} has no callable {name!r}")
    return found


@contextmanager
def named_executor(text: str | None, worker_count: int) -> Iterator[Executor | None]:
    """Make an executor by the factory named `MODULE:CALLABLE`, and end it; None without a name.

    Raises `RequestError` if none is made. Interpreters that it starts on this machine do not look for modules in the
    current directory, unless PYTHONSAFEPATH is set already.
    """
    if not text:
        yield None
        return
    factory = load_factory(text)
    is_set = _SAFE_PATH in os.environ
    os.environ.setdefault(_SAFE_PATH, "1")
    try:
        try:
            executor = factory(max_workers=worker_count)
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise RequestError(f"executor {text!r}: {error}") from None
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=True, cancel_futures=True)
            raise
        executor.shutdown()
    finally:
        if not is_set:
            del os.environ[_SAFE_PATH]
