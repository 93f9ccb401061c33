# SPDX-License-Identifier: Apache-2.0
"""Functions cut into ranges (-O2): the same answer at every PC, in fewer bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.budget import BASE_STEPS, Budget
from cfi2sframe.sframe.decode import decode_section
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.lookup import Lookup
from cfi2sframe.sframe.lookup_cost import lookup_cost
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.splitting import Limits, split_functions
from tests.support.bodies import body_of_rows, with_functions

RA = Rule(None, -8, deref=True)
STATES = {offset: FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 24, 32, 300)}
FUNCTION_SIZE = 0x400

#: Of -O2, of -Os, and of one in between.
QUICK = Limits(24, keeps_mean=True)
SMALL = Limits(256, keeps_mean=False)
FEW_ROWS = Limits(24, keeps_mean=False)


def body(*rows: tuple[int, int]) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    return body_of_rows(tuple(FrameRow(start, STATES[offset]) for start, offset in rows))


def functions_of(bodies: list[FunctionBody], gap: int = 16) -> tuple[Function, ...]:
    """Return functions of one size, with a gap between them."""
    step = FUNCTION_SIZE + gap
    return tuple(Function(0x1000 + step * n, FUNCTION_SIZE, each) for n, each in enumerate(bodies))


def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
    return words_size(state, AMD64, is_flexible=is_flexible)


def split(functions: tuple[Function, ...], version: int = 3, limits: Limits = FEW_ROWS) -> list[tuple[Function, int]]:
    return split_functions(functions, version, size_of, AMD64.prologue_step, limits, Budget(0))


def encode(functions: tuple[Function, ...], version: int) -> bytes:
    section = with_functions(Section(version, AMD64.abi_id, start_is_pcrel=version > 1), functions)
    return encode_section(plan_section(section, AMD64, 0x100000, share=True))


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


def test_repeating_blocks_stay_whole() -> None:
    stubs = tuple(Function(0x1000 * n, 0x100, body((0, 8), (11, 16))._replace(repeat_size=16)) for n in range(1, 30))
    assert split(stubs) == [(stub, number) for number, stub in enumerate(stubs)]


def test_stubs_of_a_few_blocks_join_their_neighbour() -> None:
    first = Function(0xFF0, 16, body((0, 16), (6, 24)))
    blocks = body((0, 8), (11, 16))._replace(repeat_size=16)
    joined = body((0, 16), (6, 24), (16, 8), (27, 16), (32, 8), (43, 16))
    assert split((first, Function(0x1000, 32, blocks))) == [(Function(0xFF0, 48, joined), 0)]
    many, few_alone = Function(0x1000, 160, blocks), Function(0x2000, 32, blocks)
    assert split((first, many, few_alone)) == [(first, 0), (many, 1), (few_alone, 2)]


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
    assert split(functions) == [(Function(0x1000, 60, body((0, 8), (11, 16), (29, 8), (30, 24))), 0)]


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
    made = {limits: split(functions, 3, limits) for limits in (FEW_ROWS, SMALL)}
    assert len(made[FEW_ROWS]) < len(functions) / 3
    assert max(len(function.body.starts) for function, _ in made[FEW_ROWS]) <= 24
    assert max(len(function.body.starts) for function, _ in made[SMALL]) > 24
    sizes = [len(encode(tuple(function for function, _ in each), 3)) for each in made.values()]
    assert sizes[1] < sizes[0] < len(encode(functions, 3))


def test_a_look_up_walks_no_more_rows_than_before() -> None:
    """Joined with neighbours, functions of three rows would cost more to look up, so only some of them are joined."""
    functions = small_neighbours(60)
    joined = tuple(function for function, _ in split(functions))
    assert walked(joined) > walked(functions)
    quick = tuple(function for function, _ in split(functions, 3, QUICK))
    assert walked(quick) <= walked(functions)
    assert len(encode(joined, 3)) < len(encode(quick, 3)) < len(encode(functions, 3))
    # Where other functions cost much more, these may.
    long = body(*[(9 * number, 8 + 8 * (number % 2)) for number in range(80)])
    mixed = (*functions, Function(0x8000, FUNCTION_SIZE, long))
    kept = tuple(function for function, _ in split(mixed, 3, QUICK))
    assert len(kept) < len(functions)
    assert walked(kept) <= walked(mixed)
    assert max(len(function.body.starts) for function in kept) <= 24


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


@given(random_functions(), st.sampled_from((2, 3)), st.sampled_from((QUICK, FEW_ROWS, SMALL)))
def test_every_address_keeps_its_row(functions: tuple[Function, ...], version: int, limits: Limits) -> None:
    """An SFrame function is a range of code: cutting and joining changes no answer, and no reader's conditions."""
    ranges = split(functions, version, limits)
    made = tuple(function for function, _ in ranges)
    end = functions[-1].start_vaddr + functions[-1].size
    assert states_by_address(made, version, end) == states_by_address(functions, version, end)
    assert sum(function.size for function in made) == sum(function.size for function in functions)
    for function, number in ranges:
        assert function.body.starts[0] == 0
        assert function.body.starts[-1] < function.size
        whole = functions[number]
        assert whole.start_vaddr <= function.start_vaddr < whole.start_vaddr + whole.size


@given(random_functions(), st.sampled_from((1, 2, 3)), st.sampled_from((QUICK, FEW_ROWS, SMALL)))
def test_no_section_grows_and_no_look_up_slows_down(
    functions: tuple[Function, ...], version: int, limits: Limits
) -> None:
    made = tuple(function for function, _ in split(functions, version, limits))
    assert len(encode(made, version)) <= len(encode(functions, version))
    assert max(len(function.body.starts) for function in made) <= limits.max_rows
    if limits.keeps_mean:
        assert walked(made) <= walked(functions)


@pytest.mark.parametrize("spent_steps", [0, BASE_STEPS])
def test_a_function_of_many_rows_is_cut_whatever_it_costs(spent_steps: int) -> None:
    """Also where more ranges recur than the budget allows."""
    budget = Budget(0)
    budget.spend(spent_steps, "others")
    long = body(*[(300 * number, 8 + 8 * (number % 2)) for number in range(60)])
    functions = (Function(0x1000, 0x8000, long), Function(0x10000, 0x9000, long), Function(0x20000, 9, body((0, 8))))
    made = split_functions(functions, 3, size_of, AMD64.prologue_step, QUICK, budget)
    assert max(len(function.body.starts) for function, _ in made) <= 24
    ranges = tuple(function for function, _ in made)
    assert states_by_address(ranges, 3, 0x20010) == states_by_address(functions, 3, 0x20010)
    assert walked(ranges) < walked(functions)
    assert [number for _, number in made] == sorted(number for _, number in made)
