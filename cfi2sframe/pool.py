# SPDX-License-Identifier: Apache-2.0
"""Call a function with many items: in this process, or in copies of it.

An item that is lost with its process has the result `Lost`, wherever it runs.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.processes import Lost

Item = TypeVar("Item")
Result = TypeVar("Result")

#: After this many bytes of input, reference cycles are collected.
_COLLECT_SIZE: Final = 1 << 20


@contextmanager
def results_of(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    size_of: Callable[[Item], int],
    *,
    count: int = 1,
) -> Iterator[Iterator[tuple[int, Result | Lost]]]:
    """Call a function with each item; give the items' numbers and results as they are done, in any order.

    `count` copies of this process work on them, or this process if `count` is 1. `function` raises nothing but
    `KeyboardInterrupt`. `size_of` returns the bytes of input that an item is, 0 if that is unknown: processes get the
    largest items first. Leaving the context ends
    the processes.
    """
    if count > 1 and len(items) > 1:
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
