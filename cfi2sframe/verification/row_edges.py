# SPDX-License-Identifier: Apache-2.0
"""The edges of a section: the addresses where its functions and their rows start and end.

A PCMASK function may claim billions of blocks, so its rows are listed separately. Between two addresses at which
neither the truth nor the function changes, the function's rows repeat after `period` bytes: comparing one or two blocks
is enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING

from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.constants import SFRAME_VERSION_1

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.sframe.model import Function, FunctionBody
    from cfi2sframe.verification.comparison import Ordered


class RowEdges:
    """The edges of one section."""

    def __init__(self, lookup: Ordered) -> None:
        self._lookup = lookup
        self._row_starts = IdentityMap(_row_starts)
        self._start_bits = IdentityMap(_start_bits)
        #: Whether the section has PCMASK functions.
        self.has_blocks = any(body.is_pcmask for body in lookup.bodies)

    def between(self, begin: int, end: int) -> set[int]:
        """Return the edges in `[begin, end)`, without those of the rows of PCMASK functions."""
        starts = self._lookup.starts
        first = max(0, bisect_right(starts, begin) - 1)
        last = bisect_left(starts, end)
        found: set[int] = set()
        for index in range(first, last):
            # From the start of the next function on, a look-up finds that one.
            limit = min(end, starts[index + 1]) if index + 1 < last else end
            found.update(self._edges_of(self._lookup.function_at(index), begin, limit))
        return {edge for edge in found if begin <= edge < end}

    def _edges_of(self, function: Function, begin: int, end: int) -> Iterator[int]:
        start, size = function.start_vaddr, function.size
        yield start
        yield start + size
        if function.body.is_pcmask:
            return
        deltas = self._row_starts[function.body]
        first, last = bisect_left(deltas, begin - start), bisect_left(deltas, min(end, start + size) - start)
        for delta in deltas[first:last]:
            yield start + delta

    def period(self, function: Function) -> int:
        """Return the bytes after which the rows of a function repeat; 1 where they do not."""
        if not function.body.is_pcmask:
            return 1
        if self._lookup.version == SFRAME_VERSION_1:
            return 1 << self._start_bits[function.body].bit_length()
        return max(1, function.body.repeat_size)

    def in_blocks(self, points: Iterable[int], end: int) -> set[int]:
        """Return where rows of PCMASK functions start between the points, and from the last one up to `end`.

        The points include all places where the truth or the function changes.
        """
        if not self.has_blocks:
            return set()
        found: set[int] = set()
        for begin, next_point in pairwise((*sorted(points), end)):
            holder = self._lookup.holder_of(begin)
            if holder is not None and holder.body.is_pcmask:
                found.update(self._in_period(holder, begin, min(next_point, begin + self.period(holder))))
        return found

    def _in_period(self, function: Function, begin: int, end: int) -> Iterator[int]:
        if self._lookup.version == SFRAME_VERSION_1:
            # A row is in force where the PC has all bits of its start: only multiples of the lowest bit can be edges.
            bits = self._start_bits[function.body]
            step = bits & -bits
            if not step:
                return
            places = range(-(-(begin + 1) // step) * step, end, step)
            yield from places
            return
        size = function.body.repeat_size
        if size <= 0:
            return
        # Rows that start past the block's end are never found.
        starts = self._row_starts[function.body]
        starts = starts[: bisect_left(starts, size)]
        first = begin - (begin - function.start_vaddr) % size
        for block in (first, first + size):
            for start in starts:
                if begin < block + start < end:
                    yield block + start


def _row_starts(rows: FunctionBody) -> list[int]:
    """Return the starts of rows, ascending."""
    return sorted(set(rows.starts))


def _start_bits(rows: FunctionBody) -> int:
    """Return the bits that are set in any start: version 1 tests these bits of a PC."""
    return reduce(or_, rows.starts, 0)
