# SPDX-License-Identifier: Apache-2.0
"""Functions cut into ranges whose row lists recur (-O2).

An SFrame function is a range of code, nothing more: a function of the program may be several ranges one behind the
other. Prologues and epilogues recur all over a program, so ranges of their own let functions share those rows that
differ elsewhere. A range costs a record of the function table; a list of rows costs its bytes once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import Function, FunctionBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.sframe.model import FrameState

#: A row that holds for at least as many bytes ends a run: what comes before it and what comes after recur apart.
_RUN_GAP: Final = 3
#: The most runs that one range may take, but for a function left whole.
_MAX_RUNS: Final = 8
#: How often uses are counted anew from the choices made.
_ROUNDS: Final = 6

#: What makes row lists equal: starts from the range's own, and states by number.
_Key = tuple[int, ...]


class _Shape(NamedTuple):
    """A body, the row numbers where it may be cut (0 first, the row count last), and how many functions have it."""

    body: FunctionBody
    starts: tuple[int, ...]
    states: tuple[int, ...]
    cuts: tuple[int, ...]
    use_count: int


class _Choice(NamedTuple):
    """A range of a shape: rows `[first, last)` and their key."""

    first: int
    last: int
    key: _Key


def split_functions(
    functions: Sequence[Function], version: int, words_size: Callable[[FrameState, bool], int]
) -> Iterator[tuple[Function, int]]:
    """Yield the ranges to write, in the order of the functions, each with the number of its function.

    `words_size(state, is_flexible)` is the bytes that a state's data words take. Every address has the same rows
    before and after; functions whose blocks repeat (PCMASK) stay whole.
    """
    splitter = _Splitter(version, words_size)
    shapes = splitter.shapes(functions)
    choices = splitter.choose(shapes)
    bodies: dict[tuple[int, _Key], FunctionBody] = {}
    for number, function in enumerate(functions):
        chosen = choices.get(id(function.body))
        if chosen is None or len(chosen) == 1:
            yield function, number
            continue
        starts = function.body.starts
        for position, (first, last, key) in enumerate(chosen):
            start = starts[first]
            end = starts[chosen[position + 1].first] if position + 1 < len(chosen) else function.size
            flags = splitter.flags(function.body)
            body = bodies.get((flags, key))
            if body is None:
                body = bodies[flags, key] = _piece(function.body, first, last)
            yield Function(function.start_vaddr + start, end - start, body), number


def _piece(body: FunctionBody, first: int, last: int) -> FunctionBody:
    base = body.starts[first]
    starts = tuple(start - base for start in body.starts[first:last])
    return body._replace(starts=starts, states=body.states[first:last])


class _Splitter:
    def __init__(self, version: int, words_size: Callable[[FrameState, bool], int]) -> None:
        self.record_size = s.FDE_SIZE[version]
        self.attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
        self.words_size = words_size
        self.numbers: dict[tuple[int, bool], int] = {}
        self.sizes: list[int] = []
        self.kept: list[FrameState] = []

    @staticmethod
    def flags(body: FunctionBody) -> int:
        return body.is_flexible | body.is_signal_frame << 1 | body.uses_b_key << 2

    def shapes(self, functions: Sequence[Function]) -> list[_Shape]:
        """Return the distinct bodies that may be cut. Equal bodies come as one object."""
        uses = Counter(id(function.body) for function in functions)
        distinct = {id(function.body): function.body for function in functions}
        return [self.shape(body, uses[key]) for key, body in distinct.items() if not body.repeat_size]

    def shape(self, body: FunctionBody, use_count: int) -> _Shape:
        starts = body.starts
        states = tuple(self.number(state, is_flexible=body.is_flexible) for state in body.states)
        cuts = [0]
        cuts += [n for n in range(1, len(starts)) if starts[n] - starts[n - 1] >= _RUN_GAP]
        return _Shape(body, starts, states, (*cuts, len(starts)), use_count)

    def number(self, state: FrameState, *, is_flexible: bool) -> int:
        key = (id(state), is_flexible)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.sizes)
            self.sizes.append(self.words_size(state, is_flexible))
            self.kept.append(state)
        return number

    def candidates(self, shape: _Shape) -> Iterator[tuple[int, int, _Key]]:
        """Yield (first cut, last cut, key) of every range that a shape may have."""
        flags = self.flags(shape.body)
        cuts = shape.cuts
        end = len(cuts) - 1
        for first in range(end):
            lasts = [*range(first + 1, min(end, first + _MAX_RUNS) + 1)]
            if first == 0 and lasts[-1] != end:
                lasts.append(end)
            base = shape.starts[cuts[first]]
            for last in lasts:
                rows = slice(cuts[first], cuts[last])
                starts = shape.starts[rows]
                relative = starts if base == 0 else tuple(start - base for start in starts)
                yield first, last, (flags, *relative, *shape.states[rows])

    def stored_size(self, key: _Key) -> int:
        """Return the bytes of a row list with its attribute."""
        count = (len(key) - 1) // 2
        last_start = key[count]
        start_size = 1 if last_start < 0x100 else 2 if last_start < 0x10000 else 4
        return self.attribute_size + count * (start_size + 1) + sum(self.sizes[n] for n in key[count + 1 :])

    def choose(self, shapes: Sequence[_Shape]) -> dict[int, list[_Choice]]:
        """Choose the ranges of each shape so that records and row lists together are small."""
        candidates = [(shape, list(self.candidates(shape))) for shape in shapes]
        uses: Counter[_Key] = Counter()
        for shape, options in candidates:
            for _first, _last, key in options:
                uses[key] += shape.use_count
        sizes = {key: self.stored_size(key) for key in uses}
        chosen: dict[int, list[_Choice]] = {}
        for _ in range(_ROUNDS):
            cost = {key: self.record_size + size / max(uses[key], 1) for key, size in sizes.items()}
            chosen = {id(shape.body): _cheapest(shape, options, cost) for shape, options in candidates}
            uses = Counter()
            for shape, _options in candidates:
                for choice in chosen[id(shape.body)]:
                    uses[choice.key] += shape.use_count
        return chosen


def _cheapest(shape: _Shape, options: list[tuple[int, int, _Key]], cost: dict[_Key, float]) -> list[_Choice]:
    """Return the cheapest way to put ranges one behind the other over a whole shape."""
    end = len(shape.cuts) - 1
    best = [0.0] + [float("inf")] * end
    how: list[tuple[int, int, _Key] | None] = [None] * (end + 1)
    for option in options:
        first, last, key = option
        total = best[first] + cost[key]
        if total < best[last]:
            best[last] = total
            how[last] = option
    ranges: list[_Choice] = []
    position = end
    while position:
        step = how[position]
        if step is None:
            break
        first, last, key = step
        ranges.append(_Choice(shape.cuts[first], shape.cuts[last], key))
        position = first
    return ranges[::-1]
