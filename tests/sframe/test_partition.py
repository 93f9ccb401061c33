# SPDX-License-Identifier: Apache-2.0
"""The choice of ranges is the cheapest there is: held to trying all ranges, on small inputs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.budget import BASE_MEMORY, BASE_STEPS, Budget
from cfi2sframe.errors import BudgetError
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, Rule
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.splitting.candidates import Candidates
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.partition import Partitioner
from cfi2sframe.sframe.splitting.prices import Prices
from cfi2sframe.sframe.splitting.stretches import make_stretches
from tests.support.bodies import body_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.sframe.model import FunctionBody
    from cfi2sframe.sframe.splitting.partition import Range
    from cfi2sframe.sframe.splitting.stretches import Stretch

RA: Final = Rule(None, -8, deref=True)
STATES: Final = [FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 300)]
RECORD_SIZE: Final = 16
ATTRIBUTE_SIZE: Final = 5


def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
    return words_size(state, AMD64, is_flexible=is_flexible)


#: Distances between rows; sums of some are just about, or just not, starts of one byte, and of two.
GAPS: Final = (1, 2, 4, 55, 56, 100, 200)
FAR_GAPS: Final = (*GAPS, 0xFFFF - 55)


@st.composite
def functions(draw: st.DrawFn, distances: Sequence[int] = GAPS, most_rows: int = 5) -> list[Function]:
    """Draw small functions, with gaps or without, whose rows often recur; equal bodies are one object."""
    bodies: dict[tuple[tuple[int, int], ...], FunctionBody] = {}
    made: list[Function] = []
    begin = 0x1000
    gaps = st.sampled_from(distances)
    for _ in range(draw(st.integers(1, 4))):
        rows, delta = [(0, draw(st.integers(0, 2)))], 0
        for _ in range(draw(st.integers(0, most_rows - 1))):
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
        total += partitioner.prices.walk_price * stretch.use_count * partitioner.columns.walked_count(first, last)
    return total


def least_cost(partitioner: Partitioner, stretch: Stretch, costs: list[float]) -> float:
    """Try all ranges that end at each cut of a stretch, one cut after the other; return what the cheapest way costs.

    Ranges with starts of four bytes are tried for whole stretches only.
    """
    columns, max_rows = partitioner.columns, partitioner.prices.max_rows
    base, end, use_count, _ = stretch
    own = RECORD_SIZE * use_count + ATTRIBUTE_SIZE
    least = {base: 0.0}
    for last in range(base + 1, end + 1):
        ways: list[float] = []
        for first, cost in least.items():
            so_far = cost + partitioner.prices.walk_price * use_count * columns.walked_count(first, last)
            ways += [so_far + costs[n] * use_count for to, n in partitioner.candidates.ranges_at(first) if to == last]
            is_short = last == first + 1 or columns.cut_ends[last] - columns.cut_rows[first] <= max_rows
            if is_short and ((first, last) == (base, end) or columns.start_size(first, last) < 4):
                ways.append(so_far + own + columns.rows_size(first, last))
        least[last] = min(ways)
    return least[end]


#: Prices of a row walked: none; so high that ranges are short; between. Sums of them are exact.
WALK_PRICES: Final = (0.0, 0.0, 8.0, 1 / 4, 1 / 64, 1 / 1024)


@given(functions(FAR_GAPS, most_rows=16), st.sampled_from([1, 4, 6, 20]), st.sampled_from(WALK_PRICES), st.data())
def test_no_other_ranges_are_cheaper(
    drawn: list[Function], max_rows: int, walk_price: float, data: st.DataObject
) -> None:
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, max_rows, walk_price)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(drawn, columns)
    candidates = Candidates(columns, stretches, prices, Budget(1 << 20), keeps_all=data.draw(st.booleans()))
    partitioner = Partitioner(columns, candidates, prices)
    # About what a range of its own would cost, in eighths, of which sums are exact.
    costs = [RECORD_SIZE + size + data.draw(st.integers(-160, 80)) / 8 for size in candidates.list_sizes]
    for stretch in stretches:
        chosen = partitioner.partition(stretch, costs)
        places = [stretch.first_cut, *(each.last_cut for each in chosen)]
        assert [(each.first_cut, each.last_cut) for each in chosen] == list(pairwise(places))
        assert places[-1] == stretch.last_cut
        assert cost_of(chosen, partitioner, stretch, costs) == least_cost(partitioner, stretch, costs)


@given(functions(), st.booleans())
def test_a_cost_counts_each_new_list_once(drawn: list[Function], is_stored: bool) -> None:  # noqa: FBT001 - drawn
    """Every range has a record wherever the stretch is; a list that another stretch has costs nothing more."""
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, 20)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(drawn, columns)
    candidates = Candidates(columns, stretches, prices, Budget(0), keeps_all=True)
    partitioner = Partitioner(columns, candidates, prices)
    other_uses = [int(is_stored)] * len(candidates.list_sizes)
    for stretch in stretches:
        chosen = partitioner.partition(stretch, [0] * len(other_uses))
        # A range without a list of others is told apart by its first cut.
        sizes = {
            (number, first if number is None else 0): ATTRIBUTE_SIZE + columns.rows_size(first, last)
            for first, last, number in chosen
            if number is None or not is_stored
        }
        expected = stretch.use_count * RECORD_SIZE * len(chosen) + sum(sizes.values())
        assert partitioner.cost(chosen, stretch.use_count, other_uses) == expected


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
    for first in range(len(columns.cut_rows)):
        found = candidates.ranges_at(first)
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
        is_candidate = any(last == cut + 1 for last, _ in candidates.ranges_at(cut))
        assert is_candidate == (counts[columns.key(cut, cut + 1)] > 1)


def test_a_list_that_every_use_could_extend_is_no_candidate() -> None:
    rows = ((0, 0), (20, 1), (45, 0), (75, 1))
    one = body_of_rows([FrameRow(start, STATES[state]) for start, state in (*rows, (100, 2))])
    other = body_of_rows([FrameRow(start, STATES[state]) for start, state in (*rows, (95, 2))])
    columns = Columns(size_of, 1)
    _, stretches = make_stretches([Function(0x1000, 120, one), Function(0x2000, 120, other)], columns)
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, 4)
    found = Candidates(columns, stretches, prices, Budget(1 << 20))
    every = Candidates(columns, stretches, prices, Budget(1 << 20), keeps_all=True)
    assert [last for last, _ in every.ranges_at(0)] == [1, 2, 3, 4]
    assert [last for last, _ in found.ranges_at(0) if last > 1] == [4]


def test_rows_recur_wherever_functions_begin_inside_them() -> None:
    """Two neighbours have three rows together; where in the second row one follows the other makes no difference."""
    made: list[Function] = []
    for begin, size in ((0x1000, 8), (0x2000, 7)):
        first = body_of_rows([FrameRow(0, STATES[1]), FrameRow(4, STATES[0])])
        second = body_of_rows([FrameRow(0, STATES[0]), FrameRow(12 - size, STATES[2])])
        made += [Function(begin, size, first), Function(begin + size, 20, second)]
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(made, columns)
    assert columns.inner_cuts == {2, 7}
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, 24)
    ranges_at = Candidates(columns, stretches, prices, Budget(0)).ranges_at
    assert ranges_at(0)[-1][0] == 4
    assert ranges_at(5) == [(last + 5, number) for last, number in ranges_at(0)]


@pytest.mark.parametrize("max_rows", [1, 4, 8])
def test_no_candidate_has_more_rows_than_a_range_may_have(max_rows: int) -> None:
    rows = [FrameRow(5 * number, STATES[number % 3]) for number in range(10)]
    one, other = body_of_rows(rows), body_of_rows([*rows, FrameRow(100, STATES[1])])
    columns = Columns(size_of, 1)
    _, stretches = make_stretches([Function(0x1000, 120, one), Function(0x2000, 120, other)], columns)
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, max_rows)
    found = Candidates(columns, stretches, prices, Budget(0), keeps_all=True)
    assert [last for last, _ in found.ranges_at(0)] == list(range(1, max_rows + 1))


def test_what_recurs_is_looked_for_within_the_budget() -> None:
    rows = [FrameRow(5 * number, STATES[number % 3]) for number in range(10)]
    columns = Columns(size_of, 1)
    _, stretches = make_stretches([Function(0x1000, 120, body_of_rows(rows))], columns)
    prices = Prices(RECORD_SIZE, ATTRIBUTE_SIZE, 24)
    no_time, no_memory = Budget(0), Budget(0)
    no_time.spend(BASE_STEPS, "others")
    no_memory.hold(BASE_MEMORY, "others")
    with pytest.raises(BudgetError, match="the ranges whose rows recur take more work than"):
        Candidates(columns, stretches, prices, no_time)
    with pytest.raises(BudgetError, match="the ranges whose rows recur take more memory than"):
        Candidates(columns, stretches, prices, no_memory)


def test_there_is_a_cut_after_a_few_rows_however_close_together_they_are() -> None:
    columns = Columns(size_of, 3)
    states = [FrameRow(number, STATES[number % 2]) for number in range(40)]
    make_stretches([Function(0x1000, 100, body_of_rows(states))], columns)
    assert list(columns.cut_rows) == [0, 8, 16, 24, 32, 40]
