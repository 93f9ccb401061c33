# SPDX-License-Identifier: Apache-2.0
"""Functions without a gap between them, as one stretch of code, and the places where it may be cut into ranges.

All stretches of a section stand in the same columns, one behind the other: a range of any of them is a slice, and what
makes two ranges share their rows is that their slices are equal bytes.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.sframe.model import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.sframe.model import FrameState, FunctionBody

#: The rows at which a stretch ends: version 3 counts a range's rows with 16 bits.
_MAX_ROWS: Final = 60_000
#: A range's size has 32 bits.
_MAX_SIZE: Final = 1 << 31
#: Stubs of as many blocks are as small with all their rows as with those of one block and a record of their own.
_MAX_UNROLLED: Final = 4
#: A row in a slice: its state's number, and its distance to the next row.
ROW_SIZE: Final = 8
_GAP_SIZE: Final = 4


class Stretch(NamedTuple):
    """A distinct stretch: the numbers of its first and its last cut, and how often the section has it."""

    first_cut: int
    last_cut: int
    use_count: int


class Group(NamedTuple):
    """Functions `[first, last)` without a gap, and their stretch by number; None: a function that stays as it is."""

    first: int
    last: int
    stretch: int | None


class Columns:
    """The rows and cuts of all stretches.

    Rows: `states` by number, `deltas` from the stretch's start; `words_ends[N]`, the bytes of info bytes and words of
    all rows before row N. Cuts, each stretch's end among them: `cut_rows`, the first row of a range that begins there;
    `cut_ends`, the end of the rows of a range that ends there; `cut_deltas` from the stretch's start; `last_cuts`, the
    last cut of the same stretch. A cut may lie inside a row, where a function begins with the state in which the one
    before it ends: `inner_cuts`. Other cuts lie where functions begin, and behind rows that hold for `least_gap` bytes
    or more.
    """

    def __init__(self, words_size: Callable[[FrameState, bool], int], least_gap: int) -> None:
        self.words_size = words_size
        self.least_gap = least_gap
        self.states: list[int] = []
        self.deltas: list[int] = []
        self.cut_rows: list[int] = []
        self.cut_ends: list[int] = []
        self.cut_deltas: list[int] = []
        self.last_cuts: list[int] = []
        self.inner_cuts: set[int] = set()
        #: By number: the state, and a body that has it.
        self.kept: list[tuple[FrameState, FunctionBody]] = []
        self.tail_sizes: list[int] = []
        self.numbers: dict[tuple[int, int], int] = {}
        self.words_ends: list[int] = []
        self.data = b""

    def add(self, functions: Sequence[Function]) -> tuple[int, int]:
        """Add a stretch; return the numbers of its first and last cut."""
        first_cut, begin, state = len(self.cut_rows), 0, -1
        for _start, size, body in functions:
            state = self._add_function(body, begin, state)
            begin += size
        self._add_cut(len(self.states), begin)
        last_cut = len(self.cut_rows) - 1
        self.last_cuts += [last_cut] * (last_cut + 1 - first_cut)
        return first_cut, last_cut

    def _add_function(self, body: FunctionBody, begin: int, last_state: int) -> int:
        """Add a function's rows and cuts; return the number of its last state."""
        numbers = self._state_numbers(body)
        starts, least_gap = body.starts, self.least_gap
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
        """Return the numbers of a body's states: equal ones where rows and attributes are the same."""
        kind = body.is_flexible | body.is_signal_frame << 1 | body.uses_b_key << 2
        keys = [(id(state), kind) for state in body.states]
        try:
            return list(map(self.numbers.__getitem__, keys))
        except KeyError:
            for key, state in zip(keys, body.states, strict=True):
                if key not in self.numbers:
                    self.numbers[key] = len(self.kept)
                    self.kept.append((state, body))
                    self.tail_sizes.append(1 + self.words_size(state, body.is_flexible))
            return list(map(self.numbers.__getitem__, keys))

    def body_size(self, body: FunctionBody) -> int:
        """Return the bytes of a body's rows."""
        tails = sum(map(self.tail_sizes.__getitem__, self._state_numbers(body)))
        return tails + _start_size(body.starts[-1]) * len(body.starts)

    def finish(self) -> None:
        """Make what rests on all rows."""
        self.words_ends = [0, *accumulate(map(self.tail_sizes.__getitem__, self.states))]
        # What stands between two stretches is in no slice.
        gaps = [max(after - before, 0) for before, after in zip(self.deltas, self.deltas[1:], strict=False)]
        both = array("I", bytes(ROW_SIZE * len(self.states)))
        both[0::2] = array("I", self.states)
        both[1::2] = array("I", [*gaps, 0][: len(self.states)])
        self.data = both.tobytes()

    def key(self, first: int, last: int) -> bytes:
        """Return what makes the range between two cuts equal to others: states and distances of its rows."""
        return self.keys([first], [last])[0] if first not in self.inner_cuts else self._inner_key(first, last)

    def keys(self, firsts: list[int], lasts: list[int]) -> list[bytes]:
        """Return the keys of ranges none of which begins inside a row."""
        data, rows, ends = self.data, self.cut_rows, self.cut_ends
        return [
            data[ROW_SIZE * rows[first] : ROW_SIZE * ends[last] - _GAP_SIZE]
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def _inner_key(self, first: int, last: int) -> bytes:
        row, end = self.cut_rows[first], self.cut_ends[last]
        begin = ROW_SIZE * row
        key = self.data[begin : begin + _GAP_SIZE]
        if end > row + 1:
            gap = array("I", [self.deltas[row + 1] - self.cut_deltas[first]]).tobytes()
            key += gap + self.data[begin + ROW_SIZE : ROW_SIZE * end - _GAP_SIZE]
        return key

    def rows_size(self, first: int, last: int) -> int:
        """Return the bytes of the rows of the range between two cuts."""
        row, end = self.cut_rows[first], self.cut_ends[last]
        last_start = self.deltas[end - 1] - self.cut_deltas[first]
        return self.words_ends[end] - self.words_ends[row] + _start_size(last_start) * (end - row)

    def body(self, first: int, last: int) -> FunctionBody:
        """Return the rows of the range between two cuts, their starts counted from the first cut."""
        row, end, base = self.cut_rows[first], self.cut_ends[last], self.cut_deltas[first]
        starts = (0, *[delta - base for delta in self.deltas[row + 1 : end]])
        kept = self.kept
        states = tuple([kept[number][0] for number in self.states[row:end]])
        return kept[self.states[row]][1]._replace(starts=starts, states=states)


def _start_size(last_start: int) -> int:
    """Return the bytes that each start of a row list takes."""
    return 1 if last_start < 0x100 else 2 if last_start < 0x10000 else 4


def unroll_stubs(functions: Sequence[Function]) -> list[Function]:
    """Give repeating blocks plain rows where those are as small: blocks of one row, and few with a neighbour.

    Only plain rows may be joined with those of neighbours.
    """
    made = list(functions)
    for number, (start_vaddr, size, body) in enumerate(functions):
        block = body.repeat_size
        if not block:
            continue
        count = 1 if len(body.starts) == 1 else size // block
        if count > 1 and (size % block or count > _MAX_UNROLLED or not _has_neighbour(functions, number)):
            continue
        starts = tuple([begin + start for begin in range(0, count * block, block) for start in body.starts])
        plain = body._replace(starts=starts, states=body.states * count, repeat_size=0)
        made[number] = Function(start_vaddr, size, plain)
    return made


def _has_neighbour(functions: Sequence[Function], number: int) -> bool:
    """Whether a function touches the one before it or the one behind it, and may be joined with that."""
    start, size, body = functions[number]
    before, behind = functions[max(number - 1, 0)], functions[number + 1 : number + 2]
    attributes = body[2:-1]
    return (before[0] + before[1] == start and before[2][2:-1] == attributes) or any(
        each[0] == start + size and each[2][2:-1] == attributes for each in behind
    )


def make_stretches(functions: Sequence[Function], columns: Columns) -> tuple[list[Group], list[Stretch]]:
    """Group the functions, add the distinct stretches to the columns, and finish those. Equal bodies are one object."""
    groups: list[Group] = []
    spans: list[tuple[int, int]] = []
    counts: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    for first, last in _neighbours(functions):
        if functions[first][2].repeat_size:
            groups.append(Group(first, last, None))
            continue
        # All that matters of the last function's size is that its rows lie in it.
        parts = [each for function in functions[first : last - 1] for each in (id(function[2]), function[1])]
        key = (*parts, id(functions[last - 1][2]))
        stretch = known.get(key)
        if stretch is None:
            stretch = known[key] = len(spans)
            spans.append(columns.add(functions[first:last]))
            counts.append(0)
        counts[stretch] += 1
        groups.append(Group(first, last, stretch))
    columns.finish()
    return groups, [Stretch(*span, count) for span, count in zip(spans, counts, strict=True)]


def _neighbours(functions: Sequence[Function]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of functions that lie without a gap between them and have the same attributes."""
    first = 0
    while first < len(functions):
        begin, size, body = functions[first]
        end, attributes, row_count = begin + size, body[2:], len(body.starts)
        last = first + 1
        while last < len(functions) and not body.repeat_size:
            start, size, following = functions[last]
            row_count += len(following.starts)
            if start != end or following[2:] != attributes or row_count > _MAX_ROWS or end + size - begin > _MAX_SIZE:
                break
            end += size
            last += 1
        yield first, last
        first = last
