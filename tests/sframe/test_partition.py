# SPDX-License-Identifier: Apache-2.0
"""The choice of ranges is the cheapest there is: held to trying all ways to cut, on small inputs."""

from __future__ import annotations

from collections import Counter
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
from cfi2sframe.sframe.splitting.prices import Prices
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
    columns, max_rows = partitioner.columns, partitioner.prices.max_rows
    own = RECORD_SIZE * stretch.use_count + ATTRIBUTE_SIZE
    inner = range(stretch.first_cut + 1, stretch.last_cut)
    least: float = float("inf")
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            total = 0.0
            for first, last in pairwise((stretch.first_cut, *cuts, stretch.last_cut)):
                ways: list[float] = [
                    costs[n] * stretch.use_count for to, n in partitioner.candidates.ranges_at[first] if to == last
                ]
                if last == first + 1 or columns.cut_ends[last] - columns.cut_rows[first] <= max_rows:
                    ways.append(own + columns.rows_size(first, last))
                total += min(ways, default=float("inf"))
            least = min(least, total)
    return least


@given(functions(), st.sampled_from([4, 6, 20]), st.data())
def test_no_other_ranges_are_cheaper(drawn: list[Function], max_rows: int, data: st.DataObject) -> None:
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, max_rows)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(drawn, columns)
    candidates = Candidates(columns, stretches, prices, Budget(1 << 20), keeps_all=data.draw(st.booleans()))
    partitioner = Partitioner(columns, candidates, prices)
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


@given(functions(), st.sampled_from([4, 20]))
def test_candidates_are_the_ranges_whose_rows_recur(drawn: list[Function], max_rows: int) -> None:
    """Held to comparing the rows of all ranges, by their keys."""
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(drawn, columns)
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, max_rows)
    candidates = Candidates(columns, stretches, prices, Budget(1 << 20), keeps_all=True)
    repeats = {cut: each.use_count for each in stretches for cut in range(each.first_cut, each.last_cut)}
    keys_of: dict[int, set[bytes]] = {}
    uses_of: Counter[int] = Counter()
    for first, found in enumerate(candidates.ranges_at):
        assert found == sorted(found)
        for last, number in found:
            assert first < last <= columns.last_cuts[first]
            assert last == first + 1 or columns.cut_ends[last] - columns.cut_rows[first] <= max_rows
            assert candidates.list_sizes[number] == ATTRIBUTE_SIZE + columns.rows_size(first, last)
            keys_of.setdefault(number, set()).add(columns.key(first, last))
            uses_of[number] += repeats[first]
    assert all(len(keys) == 1 for keys in keys_of.values())
    assert [uses_of[number] for number in range(len(candidates.use_counts))] == candidates.use_counts
    # All single segments that recur are there, and none that does not.
    firsts = [cut for cut, last in enumerate(columns.last_cuts) if cut != last]
    counts = Counter(columns.key(cut, cut + 1) for cut in firsts)
    for cut in firsts:
        is_candidate = any(last == cut + 1 for last, _ in candidates.ranges_at[cut])
        assert is_candidate == (counts[columns.key(cut, cut + 1)] > 1)


def test_a_list_that_every_use_could_extend_is_no_candidate() -> None:
    rows = ((0, 0), (20, 1), (45, 0), (75, 1))
    one = body_of_rows([FrameRow(start, STATES[state]) for start, state in (*rows, (100, 2))])
    other = body_of_rows([FrameRow(start, STATES[state]) for start, state in (*rows, (95, 2))])
    columns = Columns(size_of, 1)
    _, stretches = make_stretches([Function(0x1000, 120, one), Function(0x2000, 120, other)], columns)
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, 4)
    found = Candidates(columns, stretches, prices, Budget(1 << 20)).ranges_at
    every = Candidates(columns, stretches, prices, Budget(1 << 20), keeps_all=True).ranges_at
    assert [last for last, _ in every[0]] == [1, 2, 3, 4]
    assert [last for last, _ in found[0] if last > 1] == [4]


def test_there_is_a_cut_after_a_few_rows_however_close_together_they_are() -> None:
    columns = Columns(size_of, 3)
    states = [FrameRow(number, STATES[number % 2]) for number in range(40)]
    make_stretches([Function(0x1000, 100, body_of_rows(states))], columns)
    assert list(columns.cut_rows) == [0, 8, 16, 24, 32, 40]
