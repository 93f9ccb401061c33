# SPDX-License-Identifier: Apache-2.0
"""The rows of all stretches of a section, and the cuts, where a stretch may be divided into ranges.

The stretches are in the same columns, one after the other. A range is a slice of these, and two ranges can share a row
list if the bytes of their slices are equal.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.model import FunctionBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.sframe.model import Attributes, FrameState, Function

#: Bytes of a row in a slice: the number of its state, and the distance to the next row.
ROW_SIZE: Final = 8
#: Bytes of the latter.
_GAP_SIZE: Final = 4


class Columns:
    """The rows and cuts of all stretches.

    By row: `states` are numbers of states, `deltas` count bytes from the stretch's start, `tail_ends[N]` is the size of
    the info bytes and data words of all rows before row N. By cut (each stretch's start and end are cuts): `cut_rows`
    is the first row of a range that begins there, `cut_ends` the end of the rows of a range that ends there,
    `cut_deltas` counts bytes from the stretch's start, `last_cuts` is the last cut of the same stretch.

    There are cuts where functions begin, and before a row whose predecessor is in force for `least_gap` bytes or more.
    `inner_cuts` are inside a row: a function begins there with the state in which the one before it ends.
    """

    def __init__(self, words_size: Callable[[FrameState, bool], int], least_gap: int) -> None:
        self.states: list[int] = []
        self.deltas: list[int] = []
        self.tail_ends: list[int] = []
        self.cut_rows: list[int] = []
        self.cut_ends: list[int] = []
        self.cut_deltas: list[int] = []
        self.last_cuts: list[int] = []
        self.inner_cuts: set[int] = set()
        self._words_size = words_size
        self._least_gap = least_gap
        self._numbers: dict[Attributes, IdentityMap[FrameState, int]] = {}
        #: By the number of a state: the state, its function's attributes, the bytes of info byte and data words.
        self._state_of: list[FrameState] = []
        self._attributes_of: list[Attributes] = []
        self._tail_sizes: list[int] = []
        self._slices = b""

    def add(self, functions: Sequence[Function]) -> tuple[int, int]:
        """Add a stretch; return the numbers of its first and last cut."""
        first_cut, begin, last_state = len(self.cut_rows), 0, -1
        for function in functions:
            last_state = self._add_function(function.body, begin, last_state)
            begin += function.size
        self._add_cut(len(self.states), begin)
        last_cut = len(self.cut_rows) - 1
        self.last_cuts += [last_cut] * (last_cut + 1 - first_cut)
        return first_cut, last_cut

    def _add_function(self, body: FunctionBody, begin: int, last_state: int) -> int:
        """Add a function's rows and cuts; return the number of its last state."""
        numbers = self._state_numbers(body)
        starts, least_gap = body.starts, self._least_gap
        if numbers[0] == last_state:
            self.inner_cuts.add(len(self.cut_rows))
            self._add_cut(len(self.states) - 1, begin, is_inner=True)
        else:
            self._add_cut(len(self.states), begin)
            self.states.append(numbers[0])
            self.deltas.append(begin)
        row = len(self.states) - 1
        previous = 0
        for number, start in enumerate(starts):
            if start - previous >= least_gap:
                self._add_cut(row + number, begin + start)
            previous = start
        self.states += numbers[1:]
        self.deltas += [begin + start for start in starts[1:]]
        return numbers[-1]

    def _add_cut(self, row: int, delta: int, *, is_inner: bool = False) -> None:
        self.cut_rows.append(row)
        self.cut_ends.append(row + is_inner)
        self.cut_deltas.append(delta)

    def _state_numbers(self, body: FunctionBody) -> list[int]:
        """Return the numbers of a body's states; equal states have one number where the attributes are equal, too."""
        attributes = body.attributes
        numbers = self._numbers.get(attributes)
        if numbers is None:
            numbers = self._numbers[attributes] = IdentityMap(partial(self._number_state, attributes))
        return list(map(numbers.__getitem__, body.states))

    def _number_state(self, attributes: Attributes, state: FrameState) -> int:
        self._state_of.append(state)
        self._attributes_of.append(attributes)
        self._tail_sizes.append(1 + self._words_size(state, attributes.is_flexible))
        return len(self._state_of) - 1

    def finish(self) -> None:
        """Compute what depends on all rows; the caller must call this once, after the last `add`."""
        self.tail_ends = [0, *accumulate(map(self._tail_sizes.__getitem__, self.states))]
        # No slice contains the distance from one stretch to the next.
        gaps = [max(after - before, 0) for before, after in zip(self.deltas, self.deltas[1:], strict=False)]
        rows = array("I", bytes(ROW_SIZE * len(self.states)))
        rows[0::2] = array("I", self.states)
        rows[1::2] = array("I", [*gaps, 0][: len(self.states)])
        self._slices = rows.tobytes()

    def key(self, first: int, last: int) -> bytes:
        """Return a key of the range between two cuts: ranges with equal keys have equal rows and attributes."""
        return self.keys([first], [last])[0] if first not in self.inner_cuts else self._inner_key(first, last)

    def keys(self, firsts: list[int], lasts: list[int]) -> list[bytes]:
        """Return the keys of ranges none of which begins inside a row."""
        slices, rows, ends = self._slices, self.cut_rows, self.cut_ends
        return [
            slices[ROW_SIZE * rows[first] : ROW_SIZE * ends[last] - _GAP_SIZE]
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def _inner_key(self, first: int, last: int) -> bytes:
        row, end = self.cut_rows[first], self.cut_ends[last]
        begin = ROW_SIZE * row
        key = self._slices[begin : begin + _GAP_SIZE]
        if end > row + 1:
            gap = array("I", [self.deltas[row + 1] - self.cut_deltas[first]]).tobytes()
            key += gap + self._slices[begin + ROW_SIZE : ROW_SIZE * end - _GAP_SIZE]
        return key

    def rows_size(self, first: int, last: int) -> int:
        """Return the bytes of the rows of the range between two cuts."""
        row, end = self.cut_rows[first], self.cut_ends[last]
        last_start = self.deltas[end - 1] - self.cut_deltas[first]
        return self.tail_ends[end] - self.tail_ends[row] + _start_size(last_start) * (end - row)

    def body_size(self, body: FunctionBody) -> int:
        """Return the bytes of a body's rows."""
        tails = sum(map(self._tail_sizes.__getitem__, self._state_numbers(body)))
        return tails + _start_size(body.starts[-1]) * len(body.starts)

    def body(self, first: int, last: int) -> FunctionBody:
        """Return the rows of the range between two cuts, their starts counted from the first cut."""
        row, end, base = self.cut_rows[first], self.cut_ends[last], self.cut_deltas[first]
        starts = (0, *[delta - base for delta in self.deltas[row + 1 : end]])
        states = tuple(map(self._state_of.__getitem__, self.states[row:end]))
        return FunctionBody(starts, states).with_attributes(self._attributes_of[self.states[row]])


def _start_size(last_start: int) -> int:
    """Return the bytes of each start field of a row list, which depend on the largest start."""
    return 1 if last_start < 0x100 else 2 if last_start < 0x10000 else 4
