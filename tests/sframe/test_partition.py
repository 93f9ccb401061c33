# SPDX-License-Identifier: Apache-2.0
"""The choice of ranges is the cheapest there is: held to trying all ways to cut, on small inputs."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.budget import Budget
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, Rule
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.splitting.candidates import Candidates
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.partition import Partitioner
from cfi2sframe.sframe.splitting.stretches import make_stretches
from tests.support.bodies import body_of_rows

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import FunctionBody
    from cfi2sframe.sframe.splitting.partition import Range
    from cfi2sframe.sframe.splitting.stretches import Stretch

RA: Final = Rule(None, -8, deref=True)
STATES: Final = [FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 300)]
RECORD_SIZE: Final = 16
ATTRIBUTE_SIZE: Final = 5
#: All ways to cut a stretch of so many cuts are tried.
MAX_CUTS: Final = 10


def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
    return words_size(state, AMD64, is_flexible=is_flexible)


@st.composite
def functions(draw: st.DrawFn) -> list[Function]:
    """Draw small functions, with gaps or without, whose rows often recur; equal bodies are one object."""
    bodies: dict[tuple[tuple[int, int], ...], FunctionBody] = {}
    made: list[Function] = []
    begin = 0x1000
    # Some of the distances are too large for starts of one byte.
    gaps = st.sampled_from([1, 2, 4, 100, 200])
    for _ in range(draw(st.integers(1, 4))):
        rows, delta = [(0, draw(st.integers(0, 2)))], 0
        for _ in range(draw(st.integers(0, 4))):
            delta += draw(gaps)
            state = draw(st.integers(0, 2))
            if state != rows[-1][1]:
                rows.append((delta, state))
        key = tuple(rows)
        body = bodies.setdefault(key, body_of_rows([FrameRow(start, STATES[state]) for start, state in rows]))
        size = delta + draw(gaps)
        made.append(Function(begin, size, body))
        begin += size + draw(st.sampled_from([0, 0, 0, 16]))
    # A stretch may be there several times.
    size = begin + 16 - made[0].start_vaddr
    return [
        function._replace(start_vaddr=function.start_vaddr + number * size)
        for number in range(draw(st.integers(1, 3)))
        for function in made
    ]


def cost_of(ranges: list[Range], partitioner: Partitioner, stretch: Stretch, costs: list[float]) -> float:
    """Return what ranges of a stretch cost, by the definition."""
    total = 0.0
    for first, last, number in ranges:
        if number is None:
            total += RECORD_SIZE * stretch.use_count + ATTRIBUTE_SIZE + partitioner.columns.rows_size(first, last)
        else:
            total += costs[number] * stretch.use_count
    return total


def least_cost(partitioner: Partitioner, stretch: Stretch, costs: list[float]) -> float:
    """Try all ways to cut a stretch; return what the cheapest one costs."""
    own = RECORD_SIZE * stretch.use_count + ATTRIBUTE_SIZE
    inner = range(stretch.first_cut + 1, stretch.last_cut)
    least: float = float("inf")
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            total = 0.0
            for first, last in pairwise((stretch.first_cut, *cuts, stretch.last_cut)):
                ways: list[float] = [own + partitioner.columns.rows_size(first, last)]
                ways += [
                    costs[n] * stretch.use_count for to, n in partitioner.candidates.ranges_at[first] if to == last
                ]
                total += min(ways)
            least = min(least, total)
    return least


@given(functions(), st.data())
def test_no_other_ranges_are_cheaper(drawn: list[Function], data: st.DataObject) -> None:
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(drawn, columns)
    candidates = Candidates(columns, stretches, ATTRIBUTE_SIZE, Budget(1 << 20))
    partitioner = Partitioner(columns, candidates, RECORD_SIZE, ATTRIBUTE_SIZE)
    # Eighths, of which sums are exact.
    costs = [data.draw(st.integers(8, 400)) / 8 for _ in candidates.list_sizes]
    for stretch in stretches:
        if stretch.last_cut - stretch.first_cut > MAX_CUTS:
            continue
        chosen = partitioner.partition(stretch, costs)
        places = [stretch.first_cut, *(each.last_cut for each in chosen)]
        assert [(each.first_cut, each.last_cut) for each in chosen] == list(pairwise(places))
        assert places[-1] == stretch.last_cut
        assert cost_of(chosen, partitioner, stretch, costs) == least_cost(partitioner, stretch, costs)
