# SPDX-License-Identifier: Apache-2.0
"""Functions whose blocks repeat (PCMASK): where their rows start, as often as they can say something new."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.constants import SFRAME_VERSION_1

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.decode import DecodedFunction
    from cfi2sframe.sframe.lookup import Lookup

#: What takes more work than an input may.
COMPARED: Final = "the rows to compare"
#: Work on a place in a block, and rows of version 1 that are tried there in a microsecond.
_POINT_STEPS: Final = 8
_ROWS_PER_STEP: Final = 8


class Blocks:
    """The functions of a section whose blocks repeat; false when it has none.

    A function may claim billions of blocks. Where the truth does not change, they all compare like the first.
    """

    def __init__(self, lookup: Lookup, budget: Budget) -> None:
        self.lookup = lookup
        self.budget = budget
        self._has_any = any(function.is_pcmask for function in lookup.functions)
        #: What versions 2 and 3 have of a list of rows, by its identity: ascending starts in a block of some size.
        self._starts: dict[tuple[int, int], list[int]] = {}
        #: What version 1 has of one: the bits that its rows ask for.
        self._bits: dict[int, int] = {}

    def __bool__(self) -> bool:
        return self._has_any

    def period(self, function: DecodedFunction) -> int:
        """Return the bytes after which what a function says repeats; 1 where it has one row for all addresses."""
        if not function.is_pcmask:
            return 1
        if self.lookup.version == SFRAME_VERSION_1:
            return 1 << self._bits_of(function).bit_length()
        return function.repeat_size or 1

    def points_in(self, points: Iterable[int], end: int) -> set[int]:
        """Return where rows of repeating blocks start between addresses and up to an end.

        Between two of the points neither the truth nor the function changes.
        """
        if not self._has_any:
            return set()
        found: set[int] = set()
        for begin, next_point in pairwise((*sorted(points), end)):
            holder = self.lookup.holder_of(begin)
            if holder is not None and holder.is_pcmask:
                found.update(self._row_starts(holder, begin, min(next_point, begin + self.period(holder))))
        return found

    def _row_starts(self, function: DecodedFunction, begin: int, end: int) -> Iterator[int]:
        if self.lookup.version == SFRAME_VERSION_1:
            bits = self._bits_of(function)
            # A row holds wherever the PC has its bits, so no address between multiples of the lowest is special.
            step = bits & -bits
            if not step:
                return
            places = range(-(-(begin + 1) // step) * step, end, step)
            # The reader looks through the rows at each.
            self.budget.spend(len(places) * (_POINT_STEPS + len(function.rows) // _ROWS_PER_STEP), COMPARED)
            yield from places
            return
        size = function.repeat_size
        if not size:
            return
        starts = self._starts_of(function)
        self.budget.spend(_POINT_STEPS * len(starts), COMPARED)
        first = begin - (begin - function.start_vaddr) % size
        for block in (first, first + size):
            for start in starts:
                if begin < block + start < end:
                    yield block + start

    def _starts_of(self, function: DecodedFunction) -> list[int]:
        size = function.repeat_size
        key = (id(function.rows), size)
        known = self._starts.get(key)
        if known is None:
            self.budget.spend(len(function.rows) // _ROWS_PER_STEP, COMPARED)
            # Rows behind the block's end are never in force.
            known = sorted({row.row.start_delta for row in function.rows if row.row.start_delta < size})
            self._starts[key] = known
        return known

    def _bits_of(self, function: DecodedFunction) -> int:
        key = id(function.rows)
        known = self._bits.get(key)
        if known is None:
            known = 0
            for row in function.rows:
                known |= row.row.start_delta
            self._bits[key] = known
        return known
