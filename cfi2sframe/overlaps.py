# SPDX-License-Identifier: Apache-2.0
"""The ranges of FDEs to ranges that every reader accepts: none is empty, discarded, repeated or overlapping.

Knows FDEs by their numbers and ranges only. An address in several ranges belongs to the one of the best source; of its
ranges, to the one that starts last (as in the search table of `.eh_frame_hdr`), and of several such to the first in the
section's order.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import accumulate, compress, count, pairwise
from operator import add, gt
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.reasons import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    _T = TypeVar("_T")


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
        return tuple(map(Piece, self.numbers, self.starts, self.ends))

    @classmethod
    def of(cls, records: Sequence[Piece]) -> Pieces:
        """Return the columns of records."""
        return cls(
            tuple([piece.number for piece in records]),
            tuple([piece.start_vaddr for piece in records]),
            tuple([piece.end_vaddr for piece in records]),
        )

    def replaced(self, changes: Sequence[tuple[int, int, Pieces]]) -> Pieces:
        """Replace the pieces with the indices `[first, last)`, for ascending (first, last, others)."""
        return Pieces(
            spliced(self.numbers, [(first, last, others.numbers) for first, last, others in changes]),
            spliced(self.starts, [(first, last, others.starts) for first, last, others in changes]),
            spliced(self.ends, [(first, last, others.ends) for first, last, others in changes]),
        )


def spliced(column: Sequence[_T], changes: Iterable[tuple[int, int, Sequence[_T]]]) -> tuple[_T, ...]:
    """Return a column with the items `[first, last)` replaced by others, for ascending (first, last, others)."""
    parts: list[_T] = []
    position = 0
    for first, last, others in changes:
        parts += column[position:first]
        parts += others
        position = last
    parts += column[position:]
    return tuple(parts)


class Resolved(NamedTuple):
    """The addresses that each FDE keeps; by number, the FDEs that are dropped, and those that lost some addresses."""

    pieces: Pieces
    dropped: dict[int, DropReason]
    overlapped: frozenset[int]


def resolve_overlaps(ranges: Ranges, not_code: Callable[[Sequence[int], Sequence[int]], list[int]]) -> Resolved:
    """Give each address to one FDE at most.

    `not_code(starts, ends)` returns the indices of the ranges that are not executable; `starts` ascend.
    """
    first, *others = ranges.groups
    resolved = _resolve_source(ranges, first, not_code)
    for numbers in others:
        if numbers:
            resolved = _with_source(resolved, _resolve_source(ranges, numbers, not_code))
    return resolved


def _with_source(better: Resolved, other: Resolved) -> Resolved:
    """Return the addresses of FDEs with those that a lesser source adds to them."""
    taken = list(zip(better.pieces.starts, better.pieces.ends, strict=True))
    left = list(without(other.pieces, taken))
    kept = {piece.number for piece in left}
    lost = dict.fromkeys(frozenset(other.pieces.numbers) - kept, DropReason.BETTER_SOURCE)
    sizes: dict[int, int] = {}
    for pieces, sign in ((other.pieces.records, 1), (left, -1)):
        for number, start, end in pieces:
            sizes[number] = sizes.get(number, 0) + sign * (end - start)
    cut = {number for number in kept if sizes[number]}
    return Resolved(
        merged(better.pieces, Pieces.of(left)),
        {**better.dropped, **other.dropped, **lost},
        better.overlapped | (other.overlapped & kept) | cut,
    )


def merged(first: Pieces, second: Pieces) -> Pieces:
    """Return the pieces of two, which have no address in common."""
    starts = (*first.starts, *second.starts)
    order = sorted(range(len(starts)), key=starts.__getitem__)
    numbers, ends = (*first.numbers, *second.numbers), (*first.ends, *second.ends)
    return Pieces(
        tuple(map(numbers.__getitem__, order)),
        tuple(map(starts.__getitem__, order)),
        tuple(map(ends.__getitem__, order)),
    )


def without(pieces: Pieces, taken: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Yield what is left of ascending pieces without the ascending ranges `taken`."""
    position = 0
    for number, start, end in zip(*pieces, strict=True):
        begin = start
        while position < len(taken) and taken[position][1] <= begin:
            position += 1
        # A range that reaches past this piece may also cut the next one: `position` stays.
        at = position
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > begin:
                yield Piece(number, begin, taken[at][0])
            begin = max(begin, taken[at][1])
            at += 1
        if begin < end:
            yield Piece(number, begin, end)


def _resolve_source(
    ranges: Ranges, numbers: Sequence[int], not_code: Callable[[Sequence[int], Sequence[int]], list[int]]
) -> Resolved:
    """Give each address to one FDE of a source at most."""
    order = sorted(numbers, key=ranges.starts.__getitem__)
    starts, sizes = tuple(map(ranges.starts.__getitem__, order)), tuple(map(ranges.sizes.__getitem__, order))
    ends = tuple(map(add, starts, sizes))
    dropped = {order[index]: DropReason.DISCARDED for index in not_code(starts, ends)}
    if 0 in sizes:
        dropped.update((number, DropReason.EMPTY) for number, size in zip(order, sizes, strict=True) if size == 0)
    pieces = Pieces(tuple(order), starts, ends)
    if dropped:
        pieces = Pieces.of([piece for piece in pieces.records if piece.number not in dropped])
    overlapped: set[int] = set()
    settled: list[tuple[int, int, Pieces]] = []
    for first, last in _clusters(pieces.starts, pieces.ends):
        cluster = _without_duplicates(pieces.numbers[first:last], ranges, dropped)
        settled.append((first, last, Pieces.of(_settle(cluster, ranges, dropped, overlapped))))
    return Resolved(pieces.replaced(settled) if settled else pieces, dropped, frozenset(overlapped))


def _clusters(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the indices [first, last) of the runs of sorted ranges that overlap; nearly always there is none."""
    if not any(map(gt, ends, starts[1:])):
        return
    # The indices of ranges that reach, themselves or with those before them, into the next one.
    touching = compress(count(), map(gt, accumulate(ends, max), starts[1:]))
    first = last = -1
    for index in touching:
        if index >= last:
            if last >= 0:
                yield first, last
            first = index
        last = index + 2
    if last >= 0:
        yield first, last


def _without_duplicates(cluster: Sequence[int], ranges: Ranges, dropped: dict[int, DropReason]) -> list[int]:
    """Return a run without FDEs that repeat an earlier one; these are added to `dropped`."""
    seen: set[tuple[int, int, int]] = set()
    kept = []
    for number in cluster:
        key = (ranges.starts[number], ranges.sizes[number], ranges.contents[number])
        if key in seen:
            dropped[number] = DropReason.DUPLICATE
        else:
            seen.add(key)
            kept.append(number)
    return kept


def _settle(cluster: list[int], ranges: Ranges, dropped: dict[int, DropReason], overlapped: set[int]) -> list[Piece]:
    """Return the pieces of a run of overlapping ranges; FDEs that lose go to `dropped` or `overlapped`."""
    pieces = _sweep(cluster, ranges)
    won: dict[int, int] = {}
    for piece in pieces:
        won[piece.number] = won.get(piece.number, 0) + piece.end_vaddr - piece.start_vaddr
    for number in cluster:
        if number not in won:
            dropped[number] = DropReason.SHADOWED
        elif won[number] != ranges.sizes[number]:
            overlapped.add(number)
    return pieces


def _sweep(cluster: list[int], ranges: Ranges) -> list[Piece]:
    """Return the pieces of a run in ascending order; `cluster` is sorted by start."""
    starts, ends = ranges.starts, {number: ranges.starts[number] + ranges.sizes[number] for number in cluster}
    edges = sorted({starts[number] for number in cluster}.union(ends.values()))
    # A heap: the range that starts last comes first, and of equal starts the first in the section. A range that has
    # ended is removed when it comes first.
    candidates: list[tuple[int, int]] = []
    pieces: list[Piece] = []
    waiting = 0
    for edge, next_edge in pairwise(edges):
        while waiting < len(cluster) and starts[cluster[waiting]] <= edge:
            heappush(candidates, (-starts[cluster[waiting]], cluster[waiting]))
            waiting += 1
        while candidates and ends[candidates[0][1]] <= edge:
            heappop(candidates)
        if not candidates:
            continue
        number = candidates[0][1]
        if pieces and pieces[-1].number == number and pieces[-1].end_vaddr == edge:
            pieces[-1] = pieces[-1]._replace(end_vaddr=next_edge)
        else:
            pieces.append(Piece(number, edge, next_edge))
    return pieces
