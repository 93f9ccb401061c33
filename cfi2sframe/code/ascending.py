# SPDX-License-Identifier: Apache-2.0
"""Ascending numbers that more are added to, and that are looked up by the next one below.

One sorted list would be moved as a whole for each address that is found before all others, as by a chain of jumps that
leads backwards through a megabyte of code.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The numbers of a list have all bits but these in common.
_LIST_BITS: Final = 12


class Ascending:
    """Different numbers in short sorted lists, by their upper bits."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._lists: dict[int, list[int]] = {}

    def add(self, number: int) -> None:
        """Add a number."""
        key = number >> _LIST_BITS
        numbers = self._lists.get(key)
        if numbers is None:
            insort(self._keys, key)
            self._lists[key] = [number]
        else:
            insort(numbers, number)

    def remove(self, gone: Iterable[int]) -> None:
        """Remove some of the numbers."""
        for number in gone:
            key = number >> _LIST_BITS
            numbers = self._lists[key]
            del numbers[bisect_left(numbers, number)]
            if not numbers:
                del self._lists[key], self._keys[bisect_left(self._keys, key)]

    def at_most(self, limit: int) -> int | None:
        """Return the largest number up to a limit; None where there is none."""
        key = limit >> _LIST_BITS
        numbers = self._lists.get(key, ())
        index = bisect_right(numbers, limit)
        if index:
            return numbers[index - 1]
        place = bisect_left(self._keys, key)
        return self._lists[self._keys[place - 1]][-1] if place else None
