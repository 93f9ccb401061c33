# SPDX-License-Identifier: Apache-2.0
"""Make the ranges of FDEs such that every reader accepts them: none is empty, discarded, repeated or overlapping.

An address in several ranges belongs to the best source and, within that, to the range that starts last, as in the
search table of `.eh_frame_hdr`; if several do, to the first in the section. FDEs are numbers and ranges here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heappop, heappush
from itertools import pairwise
from operator import add, gt
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.conversion.reasons import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Ranges(NamedTuple):
    """The ranges of all FDEs, in section order, as columns: virtual addresses and sizes in bytes.

    FDEs with equal `contents` have equal rows, and are duplicates where their ranges are equal too. `groups` are the
    numbers of the FDEs of each source, the best one first.
    """

    starts: Sequence[int]
    sizes: Sequence[int]
    contents: Sequence[int]
    groups: Sequence[Sequence[int]]


class Piece(NamedTuple):
    """Addresses `[start_vaddr, end_vaddr)` that belong to the FDE of this number."""

    number: int
    start_vaddr: int
    end_vaddr: int


class Pieces(NamedTuple):
    """Pieces in ascending order without overlap, as columns."""

    numbers: Sequence[int] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()

    @property
    def records(self) -> tuple[Piece, ...]:
        """The pieces as records."""
        return tuple(map(Piece, *self))

    @classmethod
    def of(cls, records: Iterable[Piece]) -> Pieces:
        """Return the columns of records."""
        return cls(*zip(*records, strict=True))

    def without(self, taken: Sequence[tuple[int, int]]) -> Pieces:
        """Return what is left outside of some ranges."""
        columns = _, starts, ends = list(self.numbers), list(self.starts), list(self.ends)
        for start, end in taken:
            first, last = bisect_right(ends, start), bisect_left(starts, end)
            left = Pieces.of(
                Piece(number, *span)
                for number, vaddr, end_vaddr in zip(*[column[first:last] for column in columns], strict=True)
                for span in ((vaddr, min(start, end_vaddr)), (max(end, vaddr), end_vaddr))
                if span[0] < span[1]
            )
            for column, values in zip(columns, left, strict=True):
                column[first:last] = values
        return Pieces(*map(tuple, columns))


class Resolved(NamedTuple):
    """The addresses that FDEs keep, and the numbers of the FDEs that keep none, with the reason as their fate."""

    pieces: Pieces
    dropped: dict[int, Fate]


def resolve_overlaps(ranges: Ranges, not_code: Callable[[Sequence[int], Sequence[int]], list[int]]) -> Resolved:
    """Give each address to one FDE at most.

    `not_code(starts, ends)` returns the indices of the ranges that are not executable; `starts` ascend.
    """
    order = sorted(range(len(ranges.starts)), key=ranges.starts.__getitem__)
    starts, sizes = tuple(map(ranges.starts.__getitem__, order)), tuple(map(ranges.sizes.__getitem__, order))
    usable = Pieces(tuple(order), starts, tuple(map(add, starts, sizes)))
    dropped = {order[index]: Fate.DISCARDED for index in not_code(starts, usable.ends)}
    if 0 in sizes:
        dropped.update((number, Fate.EMPTY) for number, size in zip(order, sizes, strict=True) if size == 0)
    if dropped:
        usable = Pieces.of(piece for piece in usable.records if piece.number not in dropped)
    if not any(map(gt, usable.ends, usable.starts[1:])):
        return Resolved(usable, dropped)
    ranks = {number: rank for rank, group in enumerate(ranges.groups) for number in group}
    pieces = Pieces.of(_sweep(usable.records, ranks))
    held, seen = frozenset(pieces.numbers), set[tuple[int, ...]]()
    for number, start, end in sorted(usable.records):
        content = ranks[number], start, end, ranges.contents[number]
        if number not in held:
            holders = pieces.numbers[bisect_right(pieces.ends, start) : bisect_left(pieces.starts, end)]
            is_better = all(ranks[holder] < ranks[number] for holder in holders)
            reason = Fate.BETTER_SOURCE if is_better else Fate.SHADOWED
            dropped[number] = Fate.DUPLICATE if content in seen else reason
        seen.add(content)
    return Resolved(pieces, dropped)


def _sweep(ranges: Sequence[Piece], ranks: Mapping[int, int]) -> list[Piece]:
    """Return the pieces of ranges, in ascending order of their starts, by the ranks of the FDEs' sources."""
    # The range whose source is best is first, of these the one that starts last, and then the first in the section.
    open_ranges: list[tuple[int, int, int, int]] = []
    pieces: list[Piece] = []
    at = 0
    for edge, next_edge in pairwise(sorted({vaddr for _, *edges in ranges for vaddr in edges})):
        while at < len(ranges) and ranges[at].start_vaddr == edge:
            number, start, end = ranges[at]
            heappush(open_ranges, (ranks[number], -start, number, end))
            at += 1
        while open_ranges and open_ranges[0][3] <= edge:
            heappop(open_ranges)
        if not open_ranges:
            continue
        number = open_ranges[0][2]
        if pieces and pieces[-1].number == number and pieces[-1].end_vaddr == edge:
            pieces[-1] = pieces[-1]._replace(end_vaddr=next_edge)
        else:
            pieces.append(Piece(number, edge, next_edge))
    return pieces
