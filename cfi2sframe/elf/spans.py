# SPDX-License-Identifier: Apache-2.0
"""Ranges of file offsets or addresses, and sets of bytes made of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ADDRESS_END = 1 << 64


class Span(NamedTuple):
    """The bytes from `start` up to, not including, `end`."""

    start: int
    end: int


class SpanCount:
    """Counts the bytes of ascending spans without overlaps between two addresses, and tells whether one is in them."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = list(spans)
        self._starts = [start for start, _ in ordered]
        self._ends = [end for _, end in ordered]
        #: By number of a span, the bytes of those before it.
        self._before: list[int] = [0, *accumulate(map(sub, self._ends, self._starts))]

    def __contains__(self, vaddr: object) -> bool:
        if not isinstance(vaddr, int):
            return False
        index = bisect_right(self._starts, vaddr) - 1
        return index >= 0 and vaddr < self._ends[index]

    def between(self, start: int, end: int) -> int:
        """Return the bytes of the spans from one address up to another."""
        return max(0, self._up_to(end) - self._up_to(start))

    def _up_to(self, vaddr: int) -> int:
        index = bisect_left(self._starts, vaddr)
        excess = max(0, self._ends[index - 1] - vaddr) if index else 0
        return self._before[index] - excess


def united(spans: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in any of the spans, as ascending spans that do not touch."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if result and start <= result[-1].end:
            result[-1] = Span(result[-1].start, max(end, result[-1].end))
        else:
            result.append(Span(start, end))
    return result


def without(spans: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in any of `spans` and in none of `taken`, as ascending spans."""
    cuts = united(taken)
    result: list[Span] = []
    at = 0
    for start, end in united(spans):
        position = start
        while at < len(cuts) and cuts[at].end <= start:
            at += 1
        cut = at
        while cut < len(cuts) and cuts[cut].start < end:
            if position < cuts[cut].start:
                result.append(Span(position, cuts[cut].start))
            position = max(position, cuts[cut].end)
            cut += 1
        if position < end:
            result.append(Span(position, end))
    return result


def common(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in both, as ascending spans."""
    spans = united(first)
    return without(spans, without(spans, second))


def holder_of(spans: Sequence[Span], wanted: Span) -> Span | None:
    """Return which of some ascending spans that do not touch holds all of `wanted`; None when none does."""
    index = bisect_right(spans, Span(wanted.start, _ADDRESS_END)) - 1
    return spans[index] if index >= 0 and wanted.end <= spans[index].end else None


def touches(spans: Sequence[Span], wanted: Span) -> bool:
    """Whether any of some ascending spans that do not touch has bytes in common with `wanted`."""
    index = bisect_left(spans, Span(wanted.end, -1)) - 1
    return index >= 0 and wanted.start < min(spans[index].end, wanted.end)
