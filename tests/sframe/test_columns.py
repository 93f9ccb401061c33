# SPDX-License-Identifier: Apache-2.0
"""Rows in columns, and ranges of them: the bodies, sizes and keys that each range has, held to the functions' rows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.sframe.lookup_cost import lookup_cost
from cfi2sframe.sframe.model import FrameRow, Function
from cfi2sframe.sframe.rows import BodyPlanner
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.stretches import make_stretches
from tests.sframe.test_partition import STATES, functions, size_of
from tests.support.bodies import body_of_rows

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import FrameState, FunctionBody


def states_of(body: FunctionBody, size: int) -> list[FrameState]:
    """Return the row in force at every byte of a function."""
    states: list[FrameState] = []
    for (start, end), state in zip(pairwise((*body.starts, size)), body.states, strict=True):
        states += [state] * (end - start)
    return states


def ranges_of(columns: Columns) -> list[tuple[int, int]]:
    """Return all ranges that a section's stretches could have."""
    return [(first, end) for first, last in enumerate(columns.last_cuts) for end in range(first + 1, last + 1)]


#: There is a cut after each row, or after rows of three bytes and more.
LEAST_GAPS = st.sampled_from([1, 3])


def columns_of(drawn: list[Function], least_gap: int = 1) -> Columns:
    columns = Columns(size_of, least_gap)
    make_stretches(drawn, columns)
    return columns


@given(functions(), LEAST_GAPS)
def test_a_range_has_the_rows_of_its_functions(drawn: list[Function], least_gap: int) -> None:
    columns = Columns(size_of, least_gap)
    groups, stretches = make_stretches(drawn, columns)
    for group in groups:
        assert group.stretch is not None
        first_cut, last_cut, _, _ = stretches[group.stretch]
        whole = [state for each in drawn[group.first : group.last] for state in states_of(each.body, each.size)]
        assert columns.cut_deltas[first_cut] == 0
        for first in range(first_cut, last_cut):
            begin = columns.cut_deltas[first]
            for last in range(first + 1, last_cut + 1):
                # Equal stretches may differ in the size of their last function.
                end = columns.cut_deltas[last] if last < last_cut else len(whole)
                assert states_of(columns.body(first, last), end - begin) == whole[begin:end]


@given(functions(), LEAST_GAPS)
def test_ranges_of_equal_rows_have_equal_keys(drawn: list[Function], least_gap: int) -> None:
    """And only those, since they are stored as one list."""
    columns = columns_of(drawn, least_gap)
    ranges = ranges_of(columns)
    pairs = {(columns.key(*each), columns.body(*each)) for each in ranges}
    assert len({key for key, _ in pairs}) == len({body for _, body in pairs}) == len(pairs)
    assert all(columns.body_key(body) == key for key, body in pairs)


@given(functions(), LEAST_GAPS)
def test_ranges_of_equal_segments_have_equal_keys(drawn: list[Function], least_gap: int) -> None:
    """Candidates are found by the numbers of segments, of which the last one counts without the distance after it."""
    columns = columns_of(drawn, least_gap)
    segments = columns.segments()
    keys: dict[tuple[int, ...], bytes] = {}
    for first, last in ranges_of(columns):
        numbers: tuple[int, ...] = (segments.first_closing[first],)
        if last > first + 1:
            numbers = (segments.first_whole[first], *segments.whole[first + 1 : last - 1], segments.closing[last - 1])
        assert max(numbers) < segments.limit
        assert keys.setdefault(numbers, columns.key(first, last)) == columns.key(first, last)


@given(functions(), LEAST_GAPS)
def test_sizes_are_those_of_the_bytes_to_write(drawn: list[Function], least_gap: int) -> None:
    columns = columns_of(drawn, least_gap)
    planner = BodyPlanner(AMD64, 2)
    for first, last in ranges_of(columns):
        body = columns.body(first, last)
        size = len(planner.plan(body).data)
        assert columns.rows_size(first, last) == columns.body_size(body) == size
        assert columns.start_size(first, last) == columns.start_size_of(body)


@pytest.mark.parametrize(
    ("last_start", "start_size"), [(0xFF, 1), (0x100, 2), (0xFFFF, 2), (0x10000, 4), (0xFFFFFFFE, 4)]
)
def test_the_last_start_decides_the_size_of_all(last_start: int, start_size: int) -> None:
    body = body_of_rows([FrameRow(0, STATES[0]), FrameRow(last_start, STATES[1])])
    columns = columns_of([Function(0x1000, last_start + 1, body)])
    # Of each row, an info byte and a data word of one byte, too.
    assert columns.rows_size(0, 2) == columns.body_size(body) == 2 * (start_size + 2)
    assert columns.start_size_of(body) == start_size


def test_a_range_that_begins_inside_the_last_row_but_one() -> None:
    """Its first row counts from the cut: it is one of two rows, whatever comes after the functions."""
    leaf = body_of_rows([FrameRow(0, STATES[0])])
    ends_otherwise = body_of_rows([FrameRow(0, STATES[0]), FrameRow(4, STATES[1])])
    columns = columns_of([Function(0x1000, 8, leaf), Function(0x1008, 8, ends_otherwise)])
    assert list(columns.cut_rows) == [0, 0, 1, 2]
    assert columns.key(1, 3) == columns.body_key(ends_otherwise)
    assert columns.key(1, 2) == columns.body_key(leaf)


def test_rows_up_to_the_next_cut_are_told_apart_where_the_first_began_before() -> None:
    """Two functions differ in a row without a cut; both begin with the state in which the one before them ends."""
    leaf = body_of_rows([FrameRow(0, STATES[0])])
    made: list[Function] = []
    for number in (1, 2):
        rows = [FrameRow(0, STATES[0]), FrameRow(1, STATES[number]), FrameRow(9, STATES[0])]
        made += [Function(0x1000 * number, 8, leaf), Function(0x1000 * number + 8, 20, body_of_rows(rows))]
    columns = columns_of(made, 3)
    assert columns.inner_cuts == {1, 5}
    segments = columns.segments()
    assert segments.first_whole[1] != segments.first_whole[5]
    assert segments.closing[2] == segments.closing[6]


@given(functions(), LEAST_GAPS)
def test_the_rows_walked_are_those_of_a_function(drawn: list[Function], least_gap: int) -> None:
    columns = columns_of(drawn, least_gap)
    for first, last in ranges_of(columns):
        size = columns.cut_deltas[last] - columns.cut_deltas[first]
        assert columns.walked_count(first, last) == lookup_cost([size], [columns.body(first, last)]).walked_count


@pytest.mark.parametrize(
    ("gaps", "cut_rows"), [((1,), [0, 1, 2, 3, 4, 5]), ((5,), [0, 3, 5]), ((5, 64), [0, 2, 3, 5]), ((5, 65), [0, 3, 5])]
)
def test_there_are_cuts_around_rows_that_are_long(gaps: tuple[int, ...], cut_rows: list[int]) -> None:
    """After a row of five bytes or more; before one that is long enough, however short the row before that."""
    body = body_of_rows([FrameRow(start, STATES[n % 2]) for n, start in enumerate((0, 4, 8, 72, 76))])
    columns = Columns(size_of, *gaps)
    make_stretches([Function(0x1000, 140, body)], columns)
    assert list(columns.cut_rows) == cut_rows
