# SPDX-License-Identifier: Apache-2.0
"""Ranges that every reader accepts: nothing empty, discarded, repeated or overlapping; and bodies cut to size."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.overlaps import Piece, Pieces, Ranges, Resolved, resolve_overlaps
from cfi2sframe.reasons import DropReason
from cfi2sframe.sframe.model import FrameRow, FrameState, FunctionBody, Rule
from tests.support.bodies import body_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_code(start: int, end: int) -> bool:
    return start >= 100 and end <= 1000


def not_code(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    assert list(starts) == sorted(starts)
    return [place for place, (start, end) in enumerate(zip(starts, ends, strict=True)) if not is_code(start, end)]


class Range(NamedTuple):
    start_vaddr: int
    size: int
    content: int


def arranged(ranges: Sequence[Range], source_starts: tuple[int, ...] = (0,)) -> Resolved:
    starts, sizes, contents = ([each[n] for each in ranges] for n in range(3))
    return resolve_overlaps(Ranges(starts, sizes, contents, source_starts), not_code)


def settle(*ranges: tuple[int, int, int], source_starts: tuple[int, ...] = (0,)) -> Resolved:
    return arranged([Range(*r) for r in ranges], source_starts)


PLAIN: frozenset[int] = frozenset()
CASES = {
    "nothing": ((), (), {}, PLAIN),
    "one": (((100, 10, 0),), ((0, 100, 110),), {}, PLAIN),
    "sorted by start": (((200, 10, 0), (100, 10, 1)), ((1, 100, 110), (0, 200, 210)), {}, PLAIN),
    "neighbours touch": (((100, 10, 0), (110, 10, 0)), ((0, 100, 110), (1, 110, 120)), {}, PLAIN),
    "empty": (((100, 0, 0), (100, 10, 1)), ((1, 100, 110),), {0: DropReason.EMPTY}, PLAIN),
    "empty inside another": (((100, 10, 0), (105, 0, 0)), ((0, 100, 110),), {1: DropReason.EMPTY}, PLAIN),
    "empty outside the code": (((0, 0, 0),), (), {0: DropReason.EMPTY}, PLAIN),
    "discarded": (((0, 10, 0), (100, 10, 0)), ((1, 100, 110),), {0: DropReason.DISCARDED}, PLAIN),
    "leaves the code": (((990, 11, 0),), (), {0: DropReason.DISCARDED}, PLAIN),
    "ends with the code": (((990, 10, 0),), ((0, 990, 1000),), {}, PLAIN),
    "duplicate": (((100, 10, 5), (100, 10, 5)), ((0, 100, 110),), {1: DropReason.DUPLICATE}, PLAIN),
    "three times": (
        ((100, 10, 5), (100, 10, 5), (100, 10, 5)),
        ((0, 100, 110),),
        {1: DropReason.DUPLICATE, 2: DropReason.DUPLICATE},
        PLAIN,
    ),
    "the same range with another content": (
        ((100, 10, 5), (100, 10, 6)),
        ((0, 100, 110),),
        {1: DropReason.SHADOWED},
        PLAIN,
    ),
    "the same content elsewhere": (((100, 10, 5), (110, 10, 5)), ((0, 100, 110), (1, 110, 120)), {}, PLAIN),
    "overlap": (((100, 20, 0), (110, 20, 1)), ((0, 100, 110), (1, 110, 130)), {}, frozenset({0})),
    "nested": (((100, 30, 0), (110, 10, 1)), ((0, 100, 110), (1, 110, 120), (0, 120, 130)), {}, frozenset({0})),
    "nested at the start": (((100, 30, 0), (100, 10, 1)), ((0, 100, 130),), {1: DropReason.SHADOWED}, PLAIN),
    "nested at the start, the shorter first": (
        ((100, 10, 0), (100, 30, 1)),
        ((0, 100, 110), (1, 110, 130)),
        {},
        frozenset({1}),
    ),
    "nested at the end": (((100, 30, 0), (120, 10, 1)), ((0, 100, 120), (1, 120, 130)), {}, frozenset({0})),
    "nested twice": (
        ((100, 50, 0), (110, 30, 1), (120, 10, 2)),
        ((0, 100, 110), (1, 110, 120), (2, 120, 130), (1, 130, 140), (0, 140, 150)),
        {},
        frozenset({0, 1}),
    ),
    "shadowed by two": (
        ((100, 5, 1), (105, 20, 0), (105, 20, 2)),
        ((0, 100, 105), (1, 105, 125)),
        {2: DropReason.SHADOWED},
        PLAIN,
    ),
    "a duplicate after another overlap": (
        ((100, 30, 5), (110, 10, 6), (100, 30, 5)),
        ((0, 100, 110), (1, 110, 120), (0, 120, 130)),
        {2: DropReason.DUPLICATE},
        frozenset({0}),
    ),
    "a better source": (
        ((100, 10, 0), (100, 10, 0), (105, 10, 1)),
        ((0, 100, 110), (2, 110, 115)),
        {1: DropReason.BETTER_SOURCE},
        frozenset({2}),
    ),
    "a chain": (
        ((100, 15, 0), (110, 15, 1), (120, 15, 2)),
        ((0, 100, 110), (1, 110, 120), (2, 120, 135)),
        {},
        frozenset({0, 1}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_overlaps(name: str) -> None:
    ranges, pieces, dropped, overlapped = CASES[name]
    starts = (0, 1) if name == "a better source" else (0,)
    resolved = settle(*ranges, source_starts=starts)
    assert resolved == Resolved(Pieces.of([Piece(*p) for p in pieces]), dropped, overlapped)


def test_every_reason_has_a_case() -> None:
    assert {reason for case in CASES.values() for reason in case[2].values()} == set(DropReason)


RANGES = st.lists(
    st.builds(Range, st.integers(90, 160), st.integers(0, 40) | st.sampled_from((0, 1, 900)), st.integers(0, 2)),
    max_size=12,
)


def winners(ranges: list[Range]) -> dict[int, int]:
    """Return the number of the FDE that holds at each address, found address by address."""
    usable = [n for n, r in enumerate(ranges) if r.size and is_code(r.start_vaddr, r.start_vaddr + r.size)]
    held: dict[int, int] = {}
    for number in sorted(usable, key=lambda n: (-ranges[n].start_vaddr, n)):
        start, size, _ = ranges[number]
        for vaddr in range(start, start + size):
            held.setdefault(vaddr, number)
    return held


@given(RANGES)
def test_the_latest_start_holds(ranges: list[Range]) -> None:
    """Pieces cover the union of all ranges, each address once; it belongs to the range that starts last."""
    resolved = arranged(ranges)
    ends = 0
    held: dict[int, int] = {}
    for number, start, end in resolved.pieces.records:
        assert ends <= start < end
        ends = end
        held |= dict.fromkeys(range(start, end), number)
    assert held == winners(ranges)


@given(RANGES)
def test_every_range_has_one_outcome(ranges: list[Range]) -> None:
    """An FDE is dropped for a reason that is true of it, or has pieces; it overlaps when they are not all of it."""
    resolved = arranged(ranges)
    sizes: dict[int, int] = {}
    for number, start, end in resolved.pieces.records:
        sizes[number] = sizes.get(number, 0) + end - start
    assert set(sizes) | set(resolved.dropped) == set(range(len(ranges)))
    assert set(sizes).isdisjoint(resolved.dropped)
    assert resolved.overlapped == {number for number, size in sizes.items() if size != ranges[number].size}
    for number, reason in resolved.dropped.items():
        start, size, _ = ranges[number]
        assert (reason is DropReason.EMPTY) == (size == 0)
        assert (reason is DropReason.DISCARDED) == (size > 0 and not is_code(start, start + size))
        assert (reason is DropReason.DUPLICATE) <= (ranges[number] in ranges[:number])


@given(RANGES, st.lists(st.integers(0, 12), max_size=3))
def test_sources(ranges: list[Range], cuts: list[int]) -> None:
    """What a source holds is what it holds by itself, without the addresses of better ones."""
    starts = (0, *sorted(min(cut, len(ranges)) for cut in cuts))
    resolved = arranged(ranges, starts)
    expected: dict[int, int] = {}
    for first, last in pairwise((*starts, len(ranges))):
        mine = winners(ranges[first:last])
        expected = {vaddr: number + first for vaddr, number in mine.items()} | expected
    sizes: dict[int, int] = {}
    held: dict[int, int] = {}
    for number, start, end in resolved.pieces.records:
        sizes[number] = sizes.get(number, 0) + end - start
        held |= dict.fromkeys(range(start, end), number)
    assert held == expected
    assert list(resolved.pieces.starts) == sorted(resolved.pieces.starts)
    assert set(sizes) | set(resolved.dropped) == set(range(len(ranges)))
    assert set(sizes).isdisjoint(resolved.dropped)
    assert resolved.overlapped == {number for number, size in sizes.items() if size != ranges[number].size}


# Bodies


def body(*starts: int) -> FunctionBody:
    """Return a body whose rows tell their own starts: CFA = SP + start."""
    rows = tuple(FrameRow(start, FrameState(Rule(7, start, deref=False))) for start in starts)
    return body_of_rows(rows, is_flexible=True, is_signal_frame=True)


def rows_of(cut_body: FunctionBody) -> list[tuple[int, int]]:
    return [(row.start_delta, row.state.cfa.offset if row.state.cfa else -1) for row in cut_body.rows]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 100, [(0, 0), (4, 4), (8, 8)]),
        (0, 9, [(0, 0), (4, 4), (8, 8)]),
        (0, 8, [(0, 0), (4, 4)]),
        (0, 1, [(0, 0)]),
        (4, 100, [(0, 4), (4, 8)]),
        (5, 100, [(0, 4), (3, 8)]),
        (3, 5, [(0, 0), (1, 4)]),
        (50, 100, [(0, 8)]),
    ],
)
def test_cut(start: int, end: int, expected: list[tuple[int, int]]) -> None:
    whole = body(0, 4, 8)
    part = whole.cut(start, end)
    assert rows_of(part) == expected
    assert part[2:] == whole[2:]


@given(st.lists(st.integers(1, 60), unique=True, max_size=8), st.integers(0, 59), st.integers(1, 60))
def test_a_cut_keeps_the_row_of_every_address(more: list[int], start: int, size: int) -> None:
    whole = body(0, *sorted(more))
    end = start + size
    part = whole.cut(start, end)

    def said(rows: FunctionBody, delta: int) -> FrameState:
        return [row.state for row in rows.rows if row.start_delta <= delta][-1]

    assert part.rows[0].start_delta == 0
    assert all(row.start_delta < size for row in part.rows)
    assert all(said(part, delta - start) == said(whole, delta) for delta in range(start, end))
