# SPDX-License-Identifier: Apache-2.0
"""Maps of ranges hold, and find, what a dictionary of every single address does."""

from itertools import pairwise
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cfi2sframe.range_map import (
    ADDRESS_END,
    Distinct,
    RangeMap,
    Span,
    bytes_of,
    common,
    holder_of,
    touches,
    united,
    walk_both,
    without,
)

pytestmark = pytest.mark.property

NOTHING: Final = None
#: Addresses at either end of the address space; those between the two are one range in every map.
FIRST: Final = range(24)
LAST: Final = range(ADDRESS_END - 24, ADDRESS_END)
ADDRESSES: Final = (*FIRST, *LAST)


@st.composite
def puts(draw: st.DrawFn) -> list[tuple[list[int], list[str | None], int]]:
    """Return rows to put: starts, their values, and an end, all at one end of the address space."""
    found = []
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.sampled_from((FIRST, LAST)))
        edges = draw(st.lists(st.integers(place.start, place.stop), min_size=2, max_size=5, unique=True).map(sorted))
        values = draw(st.lists(st.sampled_from((NOTHING, *"abc")), min_size=len(edges) - 1, max_size=len(edges) - 1))
        found.append((edges[:-1], values, edges[-1]))
    return found


@st.composite
def maps(draw: st.DrawFn) -> tuple[RangeMap[str | None], dict[int, str | None]]:
    """Return a map, and the value of each of `ADDRESSES`."""
    made = RangeMap[str | None](NOTHING)
    known: dict[int, str | None] = dict.fromkeys(ADDRESSES, NOTHING)
    for starts, values, end in draw(puts()):
        follows = starts[0] >= made.starts[-1] and made.values[-1] == NOTHING
        (made.append if follows and draw(st.booleans()) else made.put)(starts, values, end)
        for (start, following), value in zip(pairwise((*starts, end)), values, strict=True):
            known.update(dict.fromkeys(range(start, following), value))
    return made, known


@given(maps())
def test_each_address_has_what_was_put_there_last(case: tuple[RangeMap[str | None], dict[int, str | None]]) -> None:
    made, known = case
    assert {address: made[address] for address in ADDRESSES} == known
    assert {address for address in ADDRESSES if address in made} == {a for a in ADDRESSES if known[a] != NOTHING}
    assert (made[-1], made[ADDRESS_END]) == (NOTHING, NOTHING)
    for address in ADDRESSES:
        start, end, value = made.range_at(address)
        assert start <= address < end
        assert {known[a] for a in ADDRESSES if start <= a < end} == {value}


@given(maps())
def test_ranges_are_the_whole_address_space(case: tuple[RangeMap[str | None], dict[int, str | None]]) -> None:
    made, known = case
    ranges = list(made)
    assert (ranges[0][0], ranges[-1][1]) == (0, ADDRESS_END)
    assert all(start < end == following for (start, end, _), (following, _, _) in pairwise(ranges))
    assert {a: value for start, end, value in ranges for a in ADDRESSES if start <= a < end} == known
    assert list(made.held()) == [each for each in ranges if each[2] != NOTHING]
    for first, last in pairwise(ADDRESSES):
        assert made.within(first, last) == [value for start, end, value in ranges if start < last and first < end]
    again = RangeMap[str | None](NOTHING, made.held())
    assert list(again.held()) == list(made.held())
    assert {address: again[address] for address in ADDRESSES} == known


@given(maps(), maps())
def test_a_walk_changes_where_either_map_does(
    ours: tuple[RangeMap[str | None], dict[int, str | None]], theirs: tuple[RangeMap[str | None], dict[int, str | None]]
) -> None:
    steps = list(walk_both(ours[0], theirs[0]))
    assert [start for start, *_ in steps] == sorted({*ours[0].starts, *theirs[0].starts})
    assert [end for _, end, *_ in steps] == [*[start for start, *_ in steps[1:]], ADDRESS_END]
    found = {a: values for start, end, *values in steps for a in ADDRESSES if start <= a < end}
    assert found == {a: [ours[1][a], theirs[1][a]] for a in ADDRESSES}


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    """Return spans in any order, some of them empty, some past the end of the address space."""
    edges = st.integers(0, 24) | st.integers(ADDRESS_END - 3, ADDRESS_END)
    return [Span(*sorted(pair)) for pair in draw(st.lists(st.tuples(edges, edges), max_size=6))]


def addresses_of(spans: list[Span]) -> set[int]:
    return {a for a in ADDRESSES for start, end in spans if start <= a < end}


def is_plain(spans: list[Span]) -> bool:
    return all(start < end for start, end in spans) and all(one.end < two.start for one, two in pairwise(spans))


@given(span_lists(), span_lists())
def test_sets_of_bytes(ours: list[Span], theirs: list[Span]) -> None:
    here, there = addresses_of(ours), addresses_of(theirs)
    for found, wanted in (
        (united(ours), here),
        (without(ours, theirs), here - there),
        (common(ours, theirs), here & there),
    ):
        assert is_plain(found)
        assert addresses_of(found) == wanted
    assert {a for a in ADDRESSES if a in bytes_of(ours)} == here


@example([Span(4, 6)], [2, 4], 40)
@given(span_lists(), st.tuples(st.integers(0, 24), st.integers(0, 24)).map(sorted), st.sampled_from([0, 12, 40]))
def test_which_span_holds_another(spans: list[Span], edges: list[int], down: int) -> None:
    """Also below 0, where spans may start and end."""
    ascending = united((start - down, end - down) for start, end in spans)
    wanted = Span(*(edge - down for edge in edges))
    assert touches(ascending, wanted) == bool(set(range(*edges)) & addresses_of(spans))
    holders = [span for span in ascending if span.start <= wanted.start and wanted.end <= span.end]
    assert holder_of(ascending, wanted) == (holders[-1] if holders else None)


def test_distinct_values_have_one_number() -> None:
    distinct = Distinct("a")
    assert [distinct.number_of(value) for value in "abacb"] == [0, 1, 0, 2, 1]
    assert distinct.values == ["a", "b", "c"]
