# SPDX-License-Identifier: Apache-2.0
"""Sets of addresses, given as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class AddressSet:
    """The union of address ranges `[start, end)`."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        last_end = -1
        for start, end in sorted(ranges):
            if start > last_end:
                self._starts.append(start)
                self._ends.append(end)
                last_end = end
            elif end > last_end:
                self._ends[-1] = last_end = end

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending; they do not touch."""
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, vaddr: int) -> bool:
        index = bisect_right(self._starts, vaddr) - 1
        return index >= 0 and vaddr < self._ends[index]

    def meets(self, start: int, end: int) -> bool:
        """Whether an address of `[start, end)` is in the set."""
        index = bisect_left(self._starts, end) - 1
        return index >= 0 and start < min(self._ends[index], end)

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges between two addresses that are not in the set."""
        position = start
        index = bisect_right(self._starts, start) - 1
        while position < end:
            if index >= 0:
                position = max(position, self._ends[index])
            index += 1
            gap_end = min(end, self._starts[index]) if index < len(self._starts) else end
            if position < gap_end:
                yield position, gap_end
            position = max(position, gap_end)
