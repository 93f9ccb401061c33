# SPDX-License-Identifier: Apache-2.0
"""Ranges that every reader accepts: nothing empty, discarded, repeated or overlapping; and bodies cut to size."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.owners import Ranges, Resolved, resolve_overlaps
from cfi2sframe.dwarf.fdes import FdeIndex, ProgramIndex
from cfi2sframe.range_map import RangeMap
from cfi2sframe.sframe.model import FrameRow, FrameState, FunctionBody, Rule
from tests.support.sframe.bodies import body_of_rows


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
    groups = tuple(list(map(FdeIndex, range(*edge))) for edge in pairwise((*source_starts, len(starts))))
    return resolve_overlaps(Ranges(starts, sizes, list(map(ProgramIndex, contents)), groups), not_code)


#: On a grid, ranges repeat one another and touch; between its lines, they overlap in any way.
RANGES = st.lists(
    st.builds(
        Range,
        st.sampled_from((100, 110, 120, 990)) | st.integers(90, 160),
        st.sampled_from((0, 1, 10, 20, 900)) | st.integers(0, 40),
        st.integers(0, 2),
    ),
    max_size=12,
)


def winners(ranges: Sequence[Range]) -> dict[int, int]:
    """Return the number of the FDE that holds at each address, found address by address: the one that starts last."""
    usable = [n for n, r in enumerate(ranges) if r.size and is_code(r.start_vaddr, r.start_vaddr + r.size)]
    held: dict[int, int] = {}
    for number in sorted(usable, key=lambda n: (-ranges[n].start_vaddr, n)):
        start, size, _ = ranges[number]
        for vaddr in range(start, start + size):
            held.setdefault(vaddr, number)
    return held


def loss(ranges: Sequence[Range], number: int, *, is_better: bool) -> Fate:
    """Return why an FDE that holds no address is dropped; `is_better`: FDEs of better sources hold all of its own."""
    start, size, _ = ranges[number]
    if size == 0:
        return Fate.EMPTY
    if not is_code(start, start + size):
        return Fate.DISCARDED
    if ranges[number] in ranges[:number]:
        return Fate.DUPLICATE
    return Fate.BETTER_SOURCE if is_better else Fate.SHADOWED


def holders(owners: RangeMap[FdeIndex | None]) -> dict[int, int]:
    """Return the FDE at each address, checking that ranges ascend and hold something."""
    held: dict[int, int] = {}
    position = 0
    for start, end, number in owners.held():
        assert position <= start < end
        position = end
        held |= dict.fromkeys(range(start, end), number)
    return held


@given(RANGES, st.lists(st.integers(0, 12), max_size=3))
@example([Range(100, 30, 5), Range(110, 10, 6), Range(100, 30, 5)], [])
@example([Range(100, 10, 0), Range(100, 10, 0), Range(105, 10, 1)], [1])
def test_every_address_has_one_holder_and_every_range_one_outcome(ranges: list[Range], cuts: list[int]) -> None:
    """What a source holds is what it holds by itself, without the addresses of better ones."""
    starts = (0, *sorted(min(cut, len(ranges)) for cut in cuts))
    expected: dict[int, int] = {}
    reasons: dict[int, Fate] = {}
    for first, last in pairwise((*starts, len(ranges))):
        mine = ranges[first:last]
        for n, (start, size, _) in enumerate(mine):
            reasons[first + n] = loss(mine, n, is_better=expected.keys() >= {*range(start, start + size)})
        expected = {vaddr: number + first for vaddr, number in winners(mine).items()} | expected
    resolved = arranged(ranges, starts)
    held = holders(resolved.owners)
    assert held == expected
    sizes = Counter(held.values())
    assert resolved.dropped == {number: reason for number, reason in reasons.items() if number not in sizes}


# Bodies


def body(*starts: int) -> FunctionBody:
    """Return a body whose rows tell their own starts: CFA = SP + start."""
    rows = tuple(FrameRow(start, FrameState(Rule(7, start, deref=False))) for start in starts)
    return body_of_rows(rows, is_flexible=True, is_signal_frame=True)


@given(st.lists(st.integers(1, 60), unique=True, max_size=8), st.integers(0, 59), st.integers(1, 60))
def test_a_cut_keeps_the_row_of_every_address(more: list[int], start: int, size: int) -> None:
    whole = body(0, *sorted(more))
    end = start + size
    part = whole.cut(start, end)
    assert part[2:] == whole[2:]

    def said(rows: FunctionBody, delta: int) -> FrameState:
        return [row.state for row in rows.rows if row.start_delta <= delta][-1]

    assert part.rows[0].start_delta == 0
    assert all(row.start_delta < size for row in part.rows)
    assert all(said(part, delta - start) == said(whole, delta) for delta in range(start, end))
