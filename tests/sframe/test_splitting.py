# SPDX-License-Identifier: Apache-2.0
"""Functions cut into ranges (-O2): the same answer at every PC, in fewer bytes."""

from __future__ import annotations

import sys
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64, ARCHES
from cfi2sframe.budget import BASE_STEPS, Budget
from cfi2sframe.errors import BudgetError
from cfi2sframe.sframe.decode import decode_section
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.lookup import Lookup
from cfi2sframe.sframe.lookup_cost import lookup_cost
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.splitting import split_functions
from cfi2sframe.sframe.splitting.candidates import Candidates
from cfi2sframe.sframe.splitting.choose import choose_ranges
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.partition import Partitioner
from cfi2sframe.sframe.splitting.prices import Prices
from cfi2sframe.sframe.splitting.split import least_gap
from cfi2sframe.sframe.splitting.stretches import make_stretches
from tests.support.bodies import body_of_rows, with_functions

RA = Rule(None, -8, deref=True)
STATES = {offset: FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 24, 32, 300)}
FUNCTION_SIZE = 0x400

MAX_ROWS = 24


def body(*rows: tuple[int, int]) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    return body_of_rows(tuple(FrameRow(start, STATES[offset]) for start, offset in rows))


def functions_of(bodies: list[FunctionBody], gap: int = 16) -> tuple[Function, ...]:
    """Return functions of one size, with a gap between them."""
    step = FUNCTION_SIZE + gap
    return tuple(Function(0x1000 + step * n, FUNCTION_SIZE, each) for n, each in enumerate(bodies))


def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
    return words_size(state, AMD64, is_flexible=is_flexible)


def split(functions: tuple[Function, ...], version: int = 3, max_rows: int = MAX_ROWS) -> list[tuple[Function, int]]:
    return split_functions(functions, version, size_of, AMD64.prologue_step, max_rows, Budget(0))


#: A function of more rows than a range may have. Cut, it leaves many rows that may be walked for others.
LONG = Function(0x800000, FUNCTION_SIZE, body(*[(9 * number, 8 + 8 * (number % 2)) for number in range(80)]))


def split_beside_long(functions: tuple[Function, ...]) -> list[tuple[Function, int]]:
    """Split functions where look-ups in them may cost more than before; return what becomes of them."""
    return [(function, number) for function, number in split((*functions, LONG)) if number < len(functions)]


def encode(functions: tuple[Function, ...], version: int) -> bytes:
    section = with_functions(Section(version, AMD64.abi_id, start_is_pcrel=version > 1), functions)
    return encode_section(plan_section(section, AMD64, 0x100000, share=True))


def chosen_row_counts(functions: tuple[Function, ...]) -> list[list[int]]:
    """Return the numbers of rows of the ranges chosen for each distinct stretch, whether they save anything or not."""
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(functions, columns)
    choices = choose_ranges(columns, stretches, Prices.of(3, 24), Budget(0), sys.maxsize)
    return [[len(columns.body(first, last).starts) for first, last, _ in ranges] for ranges in choices]


def prologue_and_epilogue(middle: int) -> FunctionBody:
    """Return a body whose ends recur and whose middle is its own."""
    entry = ((0, 8), (1, 16), (2, 24), (4, 32))
    leave = ((middle, 24), (middle + 1, 16), (middle + 2, 8), (middle + 3, 32))
    return body(*entry, *leave)


def test_recurring_ends_become_ranges_of_their_own() -> None:
    functions = functions_of([prologue_and_epilogue(0x40 + 8 * n) for n in range(40)])
    ranges = split(functions)
    assert [number for _, number in ranges] == sorted(number for _, number in ranges)
    assert len(ranges) == 80
    assert len({id(function.body) for function, _ in ranges}) == 2
    assert len(encode(tuple(f for f, _ in ranges), 3)) < len(encode(functions, 3))


def test_what_does_not_recur_stays_whole() -> None:
    functions = functions_of([prologue_and_epilogue(0x40)])
    assert split(functions) == [(functions[0], 0)]


def test_rows_that_others_have_anyway_are_cut_off_where_they_cost_more_than_a_record() -> None:
    """Cutting them off adds a record of 16 bytes, whatever their share of a list with three users would cost."""
    recurring = ((0, 8), (1, 16), (2, 24), (4, 32), (6, 24), (9, 16), (13, 8))
    own = ((20, 24), (31, 16), (43, 32))
    pair = functions_of([body(*recurring)] * 2)
    for row_count, is_cut in ((7, True), (5, False)):
        shared = body(*recurring[:row_count])
        functions = tuple(each._replace(body=shared) for each in pair)
        functions += (Function(0x8000, FUNCTION_SIZE, body(*recurring[:row_count], *own)),)
        ranges = split(functions)
        assert [number for _, number in ranges] == ([0, 1, 2, 2] if is_cut else [0, 1, 2])
        assert (ranges[2][0].body == shared) == is_cut


def test_a_list_costs_its_last_user_no_more_than_the_others() -> None:
    """All five ends have the same rows in front, which pay for their own list together."""
    recurring = ((0, 8), (1, 16), (2, 24), (4, 32), (6, 24), (9, 16), (13, 8), (15, 16))
    ends = [((30 + n, 24), (41 + 3 * n, 32), (63 + 7 * n, 24)) for n in range(5)]
    ranges = split(functions_of([body(*recurring, *end) for end in ends]))
    assert [len(function.body.starts) for function, _ in ranges] == [8, 3] * 5


@pytest.mark.parametrize(("version", "row_counts"), [(2, [11, 11, 8, 3]), (3, [11, 11, 11])])
def test_the_beginning_of_a_list_is_there_to_use_before_version_3(version: int, row_counts: list[int]) -> None:
    """Two functions begin alike: one is cut where that needs no other list, but the one that is there twice is not."""
    recurring = ((0, 8), (1, 16), (2, 24), (4, 32), (6, 24), (9, 16), (13, 8), (15, 16))
    twice = body(*recurring, (30, 24), (41, 32), (63, 24))
    once = body(*recurring, (31, 24), (44, 32), (70, 24))
    # Elsewhere, enough is saved for a bad choice here to pass.
    others = [prologue_and_epilogue(0x40 + 8 * n) for n in range(40)]
    ranges = split(functions_of([twice, twice, once, *others]), version)
    assert len(ranges) > 3 + len(others)
    assert [len(function.body.starts) for function, number in ranges if number < 3] == row_counts


def test_a_list_that_no_other_range_uses_in_the_end_is_no_reason_to_cut() -> None:
    """All three begin alike, in four rows that none has to cut off for the others."""
    functions = functions_of(
        [
            body((0, 8), (9, 32), (13, 8), (21, 32), (27, 8), (36, 32), (40, 8), (48, 32)),
            body((0, 8), (9, 32), (13, 8), (21, 32), (23, 16), (24, 32), (25, 24)),
            body((0, 8), (9, 32), (13, 8), (21, 32), (34, 8), (42, 32)),
        ]
    )
    assert chosen_row_counts(functions) == [[8], [7], [6]]


def test_a_list_that_others_still_use_is_one_to_cut_off() -> None:
    functions = functions_of(
        [
            body((0, 8), (7, 300), (9, 16), (17, 32), (20, 300), (29, 16), (37, 32), (40, 300)),
            body((0, 8), (7, 300), (9, 16), (17, 32), (20, 300)),
            body(
                *((0, 8), (7, 300), (9, 16), (17, 32), (20, 300), (29, 16), (37, 32), (40, 300)),
                *((51, 16), (59, 24), (63, 300), (67, 24), (76, 300)),
            ),
        ]
    )
    assert chosen_row_counts(functions) == [[5, 3], [5], [5, 8]]


def test_what_would_not_get_smaller_stays_whole() -> None:
    """Each beginning is there to use as long as the other one is not cut off; to cut off both costs more bytes."""
    recurring = ((0, 8), (1, 16), (2, 24), (4, 32), (6, 24), (9, 16), (13, 8), (15, 16))
    functions = functions_of([body(*recurring, (30 + n, 24), (41 + 3 * n, 32), (63 + 7 * n, 24)) for n in range(2)])
    assert split(functions, 2) == [(function, number) for number, function in enumerate(functions)]


def test_repeating_blocks_stay_whole() -> None:
    stubs = tuple(Function(0x1000 * n, 0x100, body((0, 8), (11, 16))._replace(repeat_size=16)) for n in range(1, 30))
    assert split(stubs) == [(stub, number) for number, stub in enumerate(stubs)]


def test_stubs_of_a_few_blocks_join_their_neighbour() -> None:
    first = Function(0xFF0, 16, body((0, 16), (6, 24)))
    blocks = body((0, 8), (11, 16))._replace(repeat_size=16)
    joined = body((0, 16), (6, 24), (16, 8), (27, 16), (32, 8), (43, 16))
    assert split_beside_long((first, Function(0x1000, 32, blocks))) == [(Function(0xFF0, 48, joined), 0)]
    many, few_alone = Function(0x1000, 160, blocks), Function(0x2000, 32, blocks)
    assert split_beside_long((first, many, few_alone)) == [(first, 0), (many, 1), (few_alone, 2)]


def test_blocks_of_one_row_are_one_row_however_many() -> None:
    assert split((Function(0x1000, 1600, body((0, 8))._replace(repeat_size=16)),)) == [
        (Function(0x1000, 1600, body((0, 8))), 0)
    ]


def test_small_functions_without_a_gap_are_joined() -> None:
    """A function that begins with the state in which the one before it ends needs no row for that."""
    functions = (
        Function(0x1000, 10, body((0, 8))),
        Function(0x100A, 20, body((0, 8), (1, 16), (19, 8))),
        Function(0x101E, 30, body((0, 24))),
    )
    joined = Function(0x1000, 60, body((0, 8), (11, 16), (29, 8), (30, 24)))
    assert split_beside_long(functions) == [(joined, 0)]


def test_functions_are_joined_over_no_gap_and_over_no_difference() -> None:
    leaf = body((0, 8))
    functions = (
        Function(0x1000, 10, leaf),
        Function(0x100B, 5, leaf),
        Function(0x1010, 16, leaf._replace(is_signal_frame=True)),
        Function(0x1020, 16, leaf._replace(uses_b_key=True)),
        Function(0x1030, 16, leaf._replace(is_flexible=True)),
        Function(0x1040, 160, body((0, 8), (11, 16))._replace(repeat_size=16)),
        Function(0x10E0, 16, leaf),
    )
    assert split(functions) == [(function, number) for number, function in enumerate(functions)]


def test_a_cut_inside_a_row_begins_with_that_row() -> None:
    """A function recurs after one that ends with its first state, where the two share that row."""
    alone = body((0, 8), (5, 16), (9, 24), (14, 32), (21, 300), (27, 16), (33, 24), (39, 32), (46, 300), (51, 8))
    before = Function(0x3000, 310, body((0, 300), (40, 24), (90, 16), (300, 8)))
    functions = (Function(0x1000, 60, alone), Function(0x2000, 61, alone), before, Function(0x3000 + 310, 62, alone))
    assert split(functions) == [(function, number) for number, function in enumerate(functions)]


def test_rows_far_apart_stay_together() -> None:
    """A cut costs more than two bytes more for each of a few starts."""
    function = Function(0x1000, 0x40000, body((0, 8), (0x20000, 16)))
    assert split((function,)) == [(function, 0)]


def test_two_groups_of_rows_far_apart_are_cut() -> None:
    """Starts of four bytes for all rows would cost more than another record."""
    near = [(number, 8 + 8 * (number % 4)) for number in range(8)]
    far = [(0x20000 + start, 300 if offset == 32 else offset) for start, offset in near]
    ranges = split((Function(0x1000, 0x40000, body(*near, *far)),))
    assert [len(function.body.starts) for function, _ in ranges] == [8, 8]


def test_many_rows_are_cut_where_starts_would_outgrow_a_byte() -> None:
    starts = accumulate(range(100), lambda start, n: start + 3 + n * n % 7, initial=0)
    rows = [(start, sorted(STATES)[n * n % 5]) for n, start in enumerate(starts)]
    function = Function(0x1000, 0x400, body(*rows))
    ranges = split((function,))
    assert len(ranges) > 1
    assert all(each.body.starts[-1] < 0x100 for each, _ in ranges)
    assert sum(len(each.body.starts) for each, _ in ranges) == len(rows)


def small_neighbours(count: int) -> tuple[Function, ...]:
    """Return functions of three rows, and of different sizes, without gaps between them."""
    functions, position = [], 0x1000
    for number in range(count):
        mixed = number * 2654435761 >> 8
        each = body((0, 8), (1 + mixed % 3, 16 + 8 * (mixed // 3 % 3)), (5 + mixed // 9 % 2, 8))
        functions.append(Function(position, 7 + mixed // 18 % 5, each))
        position += functions[-1].size
    return tuple(functions)


def walked(functions: tuple[Function, ...]) -> float:
    return lookup_cost([each.size for each in functions], [each.body for each in functions]).mean_rows


def test_a_range_has_few_rows() -> None:
    """Readers walk a range's rows one after the other, so not all functions without a gap are joined into one."""
    functions = small_neighbours(60)
    made = tuple(function for function, _ in split_beside_long(functions))
    assert len(made) < len(functions) / 3
    assert max(len(function.body.starts) for function in made) <= MAX_ROWS
    assert len(encode(made, 3)) < len(encode(functions, 3))


def test_what_may_be_walked_is_nearly_used_up() -> None:
    functions = small_neighbours(200)
    code_size = sum(function.size for function in functions)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(functions, columns)
    range_counts: list[int] = []
    for mean_rows in (7, 5, 3, 2.5, 2):
        most = int(mean_rows * code_size)
        choices = choose_ranges(columns, stretches, Prices.of(3, 24), Budget(0), most)
        walked_count = sum(columns.walked_count(first, last) for ranges in choices for first, last, _ in ranges)
        assert 0.85 * most <= walked_count <= most
        range_counts.append(sum(map(len, choices)))
    # The fewer rows a look-up may walk, the more ranges there are.
    assert range_counts == sorted(range_counts)


@pytest.mark.sampled
@pytest.mark.parametrize("mean_rows", [9, 7, 6, 5, 4, 3, 2.5, 2, 1.5])
def test_the_price_of_rows_is_found_in_a_few_partitions(mean_rows: float) -> None:
    """Each counts a step for four trials: a few to come near, one for the last choice, a few where that is too high.

    Functions as small as these are the hardest: rows walked hardly depend on the price, and then all at once.
    """
    functions = small_neighbours(2_000)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(functions, columns)
    prices = Prices.of(3, 24)
    budget = Budget(0)
    partitioner = Partitioner(columns, Candidates(columns, stretches, prices, budget), prices)
    most_steps = 24 * len(columns.cut_rows) + 13 * (partitioner.trial_count // 4)
    budget = Budget(0)
    budget.spend(BASE_STEPS - most_steps, "others")
    most = int(mean_rows * sum(function.size for function in functions))
    choices = choose_ranges(columns, stretches, prices, budget, most)
    assert sum(columns.walked_count(first, last) for ranges in choices for first, last, _ in ranges) <= most


def test_equal_stretches_may_differ_in_the_size_of_their_end() -> None:
    """All of them use the same ranges; the rows walked at the end of each count by its own size."""
    rows = ((0, 8), (1, 16), (2, 24), (4, 32), (6, 24), (9, 16), (13, 8), (15, 16), (30, 24))
    recurring = [Function(0x1000 + 0x10000 * number, 31 + 999 * bool(number), body(*rows)) for number in range(40)]
    others = [each._replace(start_vaddr=each.start_vaddr + 0x1000000) for each in small_neighbours(60)]
    functions = (*recurring, *others)
    made = tuple(function for function, _ in split(functions, 3))
    assert walked(made) <= walked(functions)
    assert len(encode(made, 3)) < len(encode(functions, 3))


def test_a_large_section_has_no_cuts_inside_prologues() -> None:
    for arch in ARCHES:
        assert least_gap(1_000, arch.prologue_step) == 1
        assert least_gap(1_000_000, arch.prologue_step) == arch.prologue_step + 1


def test_trying_every_range_is_counted_on_the_budget() -> None:
    functions = small_neighbours(200)
    columns = Columns(size_of, 1)
    _, stretches = make_stretches(functions, columns)
    steps_left = 16 * len(columns.cut_rows)
    budgets = Budget(0), Budget(0)
    for budget in budgets:
        budget.spend(BASE_STEPS - steps_left, "others")
    choose_ranges(columns, stretches, Prices.of(3, 24), budgets[0], sys.maxsize)
    most_walked = 2 * sum(function.size for function in functions)
    with pytest.raises(BudgetError, match="ranges at a price of rows walked take more work"):
        choose_ranges(columns, stretches, Prices.of(3, 24), budgets[1], most_walked)


def test_a_look_up_walks_no_more_rows_than_before() -> None:
    """Joined with neighbours, functions of three rows would cost more to look up, so only some of them are joined."""
    functions = small_neighbours(60)
    quick = tuple(function for function, _ in split(functions))
    assert walked(quick) <= walked(functions)
    # Where another function cost much more, these may.
    joined = tuple(function for function, _ in split_beside_long(functions))
    assert walked(joined) > walked(functions)
    assert len(encode(joined, 3)) < len(encode(quick, 3)) < len(encode(functions, 3))
    kept = tuple(function for function, _ in split((*functions, LONG)))
    assert walked(kept) <= walked((*functions, LONG))
    assert max(len(function.body.starts) for function in kept) <= MAX_ROWS


def test_the_beginning_of_another_list_costs_nothing_before_version_3() -> None:
    """Version 3 stores such a list with its own attribute; the others need no bytes for it."""
    rows = [(7 * number, 8 + 8 * (number % 4)) for number in range(20)]
    functions = functions_of([body(*rows[:12]), body(*rows), body(*rows[:16]), body(*rows[:12])])
    kept = {version: tuple(function for function, _ in split(functions, version)) for version in (1, 2, 3)}
    assert kept[1] == kept[2] == functions
    assert len(encode(kept[3], 3)) <= len(encode(functions, 3))


@st.composite
def random_bodies(draw: st.DrawFn) -> list[FunctionBody]:
    runs = draw(
        st.lists(
            st.lists(st.tuples(st.integers(1, 6), st.sampled_from(sorted(STATES))), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    bodies = []
    for _ in range(draw(st.integers(1, 12))):
        rows, position = [(0, 8)], 0
        for _ in range(draw(st.integers(0, 4))):
            position += draw(st.sampled_from((0, 5, 40, 100)))
            for gap, offset in draw(st.sampled_from(runs)):
                position += gap
                if offset != rows[-1][1]:
                    rows.append((position, offset))
        bodies.append(body(*rows))
    return bodies


@st.composite
def random_functions(draw: st.DrawFn) -> tuple[Function, ...]:
    """Return functions with and without gaps between them, some of them repeating blocks."""
    functions, position = [], 0x1000
    blocks = body((0, 8), (11, 16))._replace(repeat_size=16)
    # Equal bodies are one object.
    known: dict[FunctionBody, FunctionBody] = {}
    for each in [known.setdefault(each, each) for each in draw(random_bodies())]:
        size = each.starts[-1] + draw(st.integers(1, 20))
        whole = each
        if draw(st.integers(0, 5)) == 0:
            whole, size = blocks, 16 * draw(st.integers(1, 6))
        functions.append(Function(position, size, whole))
        position += size + draw(st.sampled_from((0, 0, 3)))
    return tuple(functions)


def states_by_address(functions: tuple[Function, ...], version: int, end: int) -> list[FrameState | None]:
    """Return the row in force at every address, as a stack tracer finds it."""
    lookup = Lookup(decode_section(encode(functions, version), 0x100000))
    found = [lookup.find(pc) for pc in range(0x0FFF, end + 2)]
    return [None if each is None or each.row is None else each.row.row.state for each in found]


@given(random_functions(), st.sampled_from((2, 3)), st.sampled_from((4, MAX_ROWS)))
def test_every_address_keeps_its_row(functions: tuple[Function, ...], version: int, max_rows: int) -> None:
    """An SFrame function is a range of code: cutting and joining changes no answer, and no reader's conditions."""
    ranges = split(functions, version, max_rows)
    made = tuple(function for function, _ in ranges)
    end = functions[-1].start_vaddr + functions[-1].size
    assert states_by_address(made, version, end) == states_by_address(functions, version, end)
    assert sum(function.size for function in made) == sum(function.size for function in functions)
    for function, number in ranges:
        assert function.body.starts[0] == 0
        assert function.body.starts[-1] < function.size
        whole = functions[number]
        assert whole.start_vaddr <= function.start_vaddr < whole.start_vaddr + whole.size


@given(random_functions(), st.sampled_from((1, 2, 3)))
def test_no_section_grows_and_no_look_up_slows_down(functions: tuple[Function, ...], version: int) -> None:
    made = tuple(function for function, _ in split(functions, version))
    assert len(encode(made, version)) <= len(encode(functions, version))
    assert max(len(function.body.starts) for function in made) <= MAX_ROWS
    assert walked(made) <= walked(functions)


@pytest.mark.sampled
@pytest.mark.parametrize("spent_steps", [0, BASE_STEPS])
def test_a_function_of_many_rows_is_cut_whatever_it_costs(spent_steps: int) -> None:
    """Also where more ranges recur than the budget allows."""
    budget = Budget(0)
    budget.spend(spent_steps, "others")
    long = body(*[(300 * number, 8 + 8 * (number % 2)) for number in range(60)])
    functions = (Function(0x1000, 0x8000, long), Function(0x10000, 0x9000, long), Function(0x20000, 9, body((0, 8))))
    made = split_functions(functions, 3, size_of, AMD64.prologue_step, MAX_ROWS, budget)
    assert max(len(function.body.starts) for function, _ in made) <= 24
    ranges = tuple(function for function, _ in made)
    assert states_by_address(ranges, 3, 0x20010) == states_by_address(functions, 3, 0x20010)
    assert walked(ranges) < walked(functions)
    assert [number for _, number in made] == sorted(number for _, number in made)
