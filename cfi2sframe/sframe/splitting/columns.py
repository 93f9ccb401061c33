# SPDX-License-Identifier: Apache-2.0
"""The rows of all stretches of a section, and the cuts, where a stretch may be divided into ranges.

The stretches are in the same columns, one after the other. A range is a slice of these, and two ranges can share a row
list if the bytes of their slices are equal.
"""

from __future__ import annotations

import sys
from array import array
from functools import partial
from itertools import accumulate, chain, count, pairwise
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.model import FunctionBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.sframe.model import Attributes, FrameState, Function

#: Bytes of a row in a slice: the number of its state, and the distance to the next row.
ROW_SIZE: Final = 8
#: Bytes of the latter.
_GAP_SIZE: Final = 4
#: There is a cut after at most so many rows, however close together they are.
_MAX_UNCUT: Final = 8


class Segments(NamedTuple):
    """By cut, the number of the rows from there to the next cut; equal rows have one number.

    `whole` are the rows with the distance from the last of them to the row after it; `closing` are those without it, as
    a range ends there. `first_whole` and `first_closing` are the same for a range that begins at the cut: they differ
    where the cut is inside a row. `limit` is larger than any number.
    """

    first_whole: array[int]
    first_closing: array[int]
    whole: array[int]
    closing: array[int]
    limit: int


class _BodyRows(NamedTuple):
    """A body's rows: numbers of states, and starts; the rows before which there is a cut inside the body."""

    states: list[int]
    starts: tuple[int, ...]
    cut_rows: list[int]


class Columns:
    """The rows and cuts of all stretches.

    By row: `states` are numbers of states, `deltas` count bytes from the stretch's start, `tail_ends[N]` is the size of
    the info bytes and data words of all rows before row N, `delta_sums[N]` the sum of their deltas. By cut (each
    stretch's start and end are cuts): `cut_rows` is the first row of a range that begins there, `cut_ends` the end of
    the rows of a range that ends there, `cut_deltas` counts bytes from the stretch's start, `last_cuts` is the last cut
    of the same stretch.

    There are cuts where functions begin, before a row whose predecessor is in force for `least_gap` bytes or more,
    before a row in force for `long_gap` bytes or more, and after a few rows without a cut. `inner_cuts` are inside a
    row: a function begins there with the state in which the one before it ends.
    """

    def __init__(
        self, words_size: Callable[[FrameState, bool], int], least_gap: int, long_gap: int = sys.maxsize
    ) -> None:
        self.states = array("I")
        self.deltas = array("I")
        self.tail_ends = array("I")
        self.delta_sums = array("Q")
        self.cut_rows = array("I")
        self.cut_ends = array("I")
        self.cut_deltas = array("I")
        self.last_cuts = array("I")
        self.inner_cuts: set[int] = set()
        self._words_size = words_size
        self._least_gap = least_gap
        self._long_gap = long_gap
        self._numbers: dict[Attributes, IdentityMap[FrameState, int]] = {}
        #: By the number of a state: the state, its function's attributes, the bytes of info byte and data words.
        self._state_of: list[FrameState] = []
        self._attributes_of: list[Attributes] = []
        self._tail_sizes: list[int] = []
        self._bodies = IdentityMap(self._rows_of)
        self._slices = b""

    def add(self, functions: Sequence[Function]) -> tuple[int, int]:
        """Add a stretch; return the numbers of its first and last cut."""
        first_cut, begin, last_state = len(self.cut_rows), 0, -1
        for function in functions:
            last_state = self._add_body(self._bodies[function.body], begin, last_state)
            begin += function.size
        self._add_cut(len(self.states), len(self.states), begin)
        last_cut = len(self.cut_rows) - 1
        self.last_cuts.extend([last_cut] * (last_cut + 1 - first_cut))
        return first_cut, last_cut

    def _add_body(self, body: _BodyRows, begin: int, last_state: int) -> int:
        """Add a function's rows and cuts; return the number of its last state."""
        is_inner = body.states[0] == last_state
        first_row = len(self.states) - is_inner
        if is_inner:
            self.inner_cuts.add(len(self.cut_rows))
        self._add_cut(first_row, len(self.states), begin)
        rows = [first_row + row for row in body.cut_rows]
        self.cut_rows.extend(rows)
        self.cut_ends.extend(rows)
        self.cut_deltas.extend([begin + body.starts[row] for row in body.cut_rows])
        self.states.extend(body.states[is_inner:])
        self.deltas.extend([begin + start for start in body.starts[is_inner:]])
        return body.states[-1]

    def _add_cut(self, row: int, end: int, delta: int) -> None:
        self.cut_rows.append(row)
        self.cut_ends.append(end)
        self.cut_deltas.append(delta)

    def _rows_of(self, body: FunctionBody) -> _BodyRows:
        """Number a body's states and find its cuts."""
        attributes = body.attributes
        numbers = self._numbers.get(attributes)
        if numbers is None:
            numbers = self._numbers[attributes] = IdentityMap(partial(self._number_state, attributes))
        starts, least_gap, long_gap = body.starts, self._least_gap, self._long_gap
        gaps = [*map(sub, starts[1:], starts), 0]
        cuts = [
            row for row, (gap, next_gap) in enumerate(pairwise(gaps), 1) if gap >= least_gap or next_gap >= long_gap
        ]
        rows = _with_more_cuts(cuts, len(starts))
        states = list(map(numbers.__getitem__, body.states))
        return _BodyRows(states, starts, rows)

    def _number_state(self, attributes: Attributes, state: FrameState) -> int:
        """Equal states have one number where the attributes are equal, too."""
        self._state_of.append(state)
        self._attributes_of.append(attributes)
        self._tail_sizes.append(1 + self._words_size(state, attributes.is_flexible))
        return len(self._state_of) - 1

    def finish(self) -> None:
        """Compute what depends on all rows; the caller must call this once, after the last `add`."""
        self.tail_ends = array("I", accumulate(map(self._tail_sizes.__getitem__, self.states), initial=0))
        self.delta_sums = array("Q", accumulate(self.deltas, initial=0))
        # No slice contains the distance from one stretch to the next.
        gaps = [max(after - before, 0) for before, after in pairwise(self.deltas)]
        self._slices = _slice_of(self.states, array("I", [*gaps, 0][: len(self.states)]))

    def segments(self) -> Segments:
        """Return the numbers of the rows between each cut and the next one."""
        slices, inner_cuts = self._slices, sorted(self.inner_cuts)
        # Rows that begin at a cut or after it.
        begins = [ROW_SIZE * row for row in self.cut_rows]
        for cut in inner_cuts:
            begins[cut] += ROW_SIZE
        ends = [ROW_SIZE * end - _GAP_SIZE for end in self.cut_ends]
        whole = [slices[begin:end] for begin, end in pairwise(begins)]
        # Between a cut inside a row and the row's end, no row begins.
        closing = [slices[begin : max(begin, end)] for begin, end in zip(begins, ends[1:], strict=False)]
        first_whole, first_closing = whole.copy(), closing.copy()
        for cut in inner_cuts:
            if cut != self.last_cuts[cut]:
                first_whole[cut] = self._inner_key(cut, begins[cut + 1])
                first_closing[cut] = self._inner_key(cut, ends[cut + 1])
        columns = (first_whole, first_closing, whole, closing)
        numbers = dict(zip(dict.fromkeys(chain(*columns)), count(), strict=False))
        numbered = [array("I", map(numbers.__getitem__, keys)) for keys in columns]
        return Segments(numbered[0], numbered[1], numbered[2], numbered[3], len(numbers))

    def key(self, first: int, last: int) -> bytes:
        """Return a key of the range between two cuts: ranges with equal keys have equal rows and attributes."""
        end = ROW_SIZE * self.cut_ends[last] - _GAP_SIZE
        if first in self.inner_cuts:
            return self._inner_key(first, end)
        return self._slices[ROW_SIZE * self.cut_rows[first] : end]

    def _inner_key(self, cut: int, end: int) -> bytes:
        """Return the slice from a cut inside a row, whose distance to the next row counts from the cut, to `end`."""
        row = self.cut_rows[cut]
        begin = ROW_SIZE * row
        key = self._slices[begin : begin + _GAP_SIZE]
        if end > begin + _GAP_SIZE and row + 1 < len(self.deltas):
            gap = max(self.deltas[row + 1] - self.cut_deltas[cut], 0)
            key += array("I", [gap]).tobytes() + self._slices[begin + ROW_SIZE : end]
        return key

    def body_key(self, body: FunctionBody) -> bytes:
        """Return a key of a whole body: equal to that of a range with equal rows and attributes."""
        gaps = array("I", [*map(sub, body.starts[1:], body.starts), 0])
        return _slice_of(array("I", self._bodies[body].states), gaps)[:-_GAP_SIZE]

    def rows_size(self, first: int, last: int) -> int:
        """Return the bytes of the rows of the range between two cuts."""
        row, end = self.cut_rows[first], self.cut_ends[last]
        return self.tail_ends[end] - self.tail_ends[row] + self.start_size(first, last) * (end - row)

    def row_count(self, first: int, last: int) -> int:
        """Return the number of rows of the range between two cuts."""
        return self.cut_ends[last] - self.cut_rows[first]

    def walked_count(self, first: int, last: int) -> int:
        """Return the rows that readers walk for all addresses of the range between two cuts together.

        A row costs one for each byte from its start to the range's end.
        """
        row, end, begin = self.cut_rows[first], self.cut_ends[last], self.cut_deltas[first]
        # The first row starts at the cut, even if it is in force before.
        starts = self.delta_sums[end] - self.delta_sums[row] + begin - self.deltas[row]
        return (end - row) * self.cut_deltas[last] - starts

    def start_size(self, first: int, last: int) -> int:
        """Return the bytes of each start field of the range between two cuts."""
        return _start_size(self.deltas[self.cut_ends[last] - 1] - self.cut_deltas[first])

    def start_size_of(self, body: FunctionBody) -> int:
        """Return the bytes of each start field of a body."""
        return _start_size(body.starts[-1])

    def body_size(self, body: FunctionBody) -> int:
        """Return the bytes of a body's rows."""
        states = self._bodies[body].states
        return sum(map(self._tail_sizes.__getitem__, states)) + _start_size(body.starts[-1]) * len(states)

    def body(self, first: int, last: int) -> FunctionBody:
        """Return the rows of the range between two cuts, their starts counted from the first cut."""
        row, end, base = self.cut_rows[first], self.cut_ends[last], self.cut_deltas[first]
        starts = (0, *[delta - base for delta in self.deltas[row + 1 : end]])
        states = tuple(map(self._state_of.__getitem__, self.states[row:end]))
        return FunctionBody(starts, states).with_attributes(self._attributes_of[self.states[row]])


def _with_more_cuts(rows: list[int], end: int) -> list[int]:
    """Return the rows before which there are cuts, and more of them where there would be too many rows without one."""
    if end <= _MAX_UNCUT or all(after - before <= _MAX_UNCUT for before, after in pairwise((0, *rows, end))):
        return rows
    cuts = [range(before, after, _MAX_UNCUT) for before, after in pairwise((0, *rows, end))]
    return [row for between in cuts for row in between if row]


def _slice_of(states: array[int], gaps: array[int]) -> bytes:
    """Return the bytes of rows: of each, its state's number and the distance to the next."""
    rows = array("I", bytes(ROW_SIZE * len(states)))
    rows[0::2] = states
    rows[1::2] = gaps
    return rows.tobytes()


def _start_size(last_start: int) -> int:
    """Return the bytes of each start field of a row list, which depend on the largest start."""
    return 1 if last_start < 0x100 else 2 if last_start < 0x10000 else 4
