# SPDX-License-Identifier: Apache-2.0
"""From FDEs to code ranges that every reader accepts: no empty, discarded, repeated or overlapping ones.

Knows ranges and bodies, not how they came about. Where ranges overlap, the address belongs to the range that starts
last (as in the search table of `.eh_frame_hdr`), and to the first of those in the section's order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heappop, heappush
from itertools import accumulate, compress, count, pairwise, repeat
from operator import add, gt
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.reasons import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.sframe.model import FunctionBody

#: Makes a record of a tuple without a call in between.
_make: Final = tuple.__new__


class Ranges(NamedTuple):
    """The ranges of all FDEs, in section order, as columns: starts, sizes in bytes, and a number for what each says.

    Equal contents over equal ranges repeat one another.
    """

    starts: Sequence[int]
    sizes: Sequence[int]
    contents: Sequence[int]


class Piece(NamedTuple):
    """Where an FDE, given by its number, holds: `[start_vaddr, end_vaddr)`."""

    number: int
    start_vaddr: int
    end_vaddr: int


class Arrangement(NamedTuple):
    """Pieces in ascending order without overlap; the FDEs dropped, by number; those that lost bytes to others."""

    pieces: tuple[Piece, ...]
    dropped: dict[int, DropReason]
    overlapped: frozenset[int]


def arrange(ranges: Ranges, is_code: Callable[[int, int], bool]) -> Arrangement:
    """Arrange the ranges of all FDEs.

    `is_code(start_vaddr, end_vaddr)` says whether a range is executable.
    """
    starts, sizes, _ = ranges
    ends = list(map(add, starts, sizes))
    dropped: dict[int, DropReason] = {}
    order: list[int] = sorted(range(len(starts)), key=starts.__getitem__)
    dropped.update((n, DropReason.DISCARDED) for n in order if not is_code(starts[n], ends[n]))
    if 0 in sizes:
        dropped.update((n, DropReason.EMPTY) for n in order if sizes[n] == 0)
    if dropped:
        order = [number for number in order if number not in dropped]
    starts, ends = list(map(starts.__getitem__, order)), list(map(ends.__getitem__, order))
    whole = list(map(_make, repeat(Piece), zip(order, starts, ends, strict=True)))
    pieces: list[Piece] = []
    overlapped: set[int] = set()
    position = 0
    for first, last in _clusters(starts, ends):
        pieces += whole[position:first]
        cluster = _without_duplicates(order[first:last], ranges, dropped)
        _close(cluster, ranges, pieces, dropped, overlapped)
        position = last
    pieces += whole[position:]
    return Arrangement(tuple(pieces), dropped, frozenset(overlapped))


def _clusters(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the runs of sorted ranges that overlap one another; nearly always there is none."""
    touched = compress(count(), map(gt, accumulate(ends, max), starts[1:]))
    first = last = -1
    for number in touched:
        if number >= last:
            if last >= 0:
                yield first, last
            first = number
        last = number + 2
    if last >= 0:
        yield first, last


def _without_duplicates(cluster: list[int], ranges: Ranges, dropped: dict[int, DropReason]) -> list[int]:
    seen: set[tuple[int, int, int]] = set()
    kept = []
    for number in cluster:
        what = (ranges.starts[number], ranges.sizes[number], ranges.contents[number])
        if what in seen:
            dropped[number] = DropReason.DUPLICATE
        else:
            seen.add(what)
            kept.append(number)
    return kept


def _close(
    cluster: list[int], ranges: Ranges, pieces: list[Piece], dropped: dict[int, DropReason], overlapped: set[int]
) -> None:
    """Settle a run of ranges that touch only one another."""
    won: dict[int, int] = {}
    for piece in _sweep(cluster, ranges):
        pieces.append(piece)
        won[piece.number] = won.get(piece.number, 0) + piece.end_vaddr - piece.start_vaddr
    for number in cluster:
        if number not in won:
            dropped[number] = DropReason.SHADOWED
        elif won[number] != ranges.sizes[number]:
            overlapped.add(number)


def _sweep(cluster: list[int], ranges: Ranges) -> list[Piece]:
    starts, ends = ranges.starts, {number: ranges.starts[number] + ranges.sizes[number] for number in cluster}
    edges = sorted({starts[number] for number in cluster}.union(ends.values()))
    # Candidates by (latest start, first in the section); those that have ended are thrown out when they come up.
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


def cut(body: FunctionBody, start_delta: int, end_delta: int) -> FunctionBody:
    """Return what a body says of `[start_delta, end_delta)`, with row starts counted from `start_delta`."""
    starts, states = body.starts, body.states
    if start_delta == 0 and starts[-1] < end_delta:
        return body
    first = bisect_right(starts, start_delta) - 1
    last = bisect_left(starts, end_delta, first + 1)
    kept = (0, *(start - start_delta for start in starts[first + 1 : last]))
    return body._replace(starts=kept, states=states[first:last])


def split_points(body: FunctionBody, max_row_count: int) -> tuple[int, ...]:
    """Return the deltas at which a body has to be cut so that no part has more than `max_row_count` rows; 0 first."""
    return body.starts[::max_row_count]
