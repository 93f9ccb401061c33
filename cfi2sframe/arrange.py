# SPDX-License-Identifier: Apache-2.0
"""From FDEs to code ranges that every reader accepts: no empty, discarded, repeated or overlapping ones.

Knows ranges and bodies, not how they came about. Where ranges overlap, the address belongs to the range that starts
last (as in the search table of `.eh_frame_hdr`), and to the first of those in the section's order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.reasons import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.sframe.model import FrameRow, FunctionBody


class Range(NamedTuple):
    """The range of an FDE. `content` identifies what it says; equal contents over equal ranges repeat one another."""

    start_vaddr: int
    size: int
    content: int


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


def arrange(ranges: Sequence[Range], is_code: Callable[[int, int], bool]) -> Arrangement:
    """Arrange the ranges of all FDEs, given in section order.

    `is_code(start_vaddr, end_vaddr)` says whether a range is executable.
    """
    dropped: dict[int, DropReason] = {}
    starts = [each[0] for each in ranges]
    order = sorted(range(len(ranges)), key=starts.__getitem__)
    pieces: list[Piece] = []
    cluster: list[int] = []
    cluster_end = 0
    overlapped: set[int] = set()
    seen: set[Range] = set()
    make_piece = tuple.__new__
    for number in order:
        current = ranges[number]
        start, size, _content = current
        if size == 0:
            dropped[number] = DropReason.EMPTY
            continue
        if not is_code(start, start + size):
            dropped[number] = DropReason.DISCARDED
            continue
        if start < cluster_end:
            if not seen:
                seen = {ranges[other] for other in cluster}
            if current in seen:
                dropped[number] = DropReason.DUPLICATE
                continue
            seen.add(current)
            cluster.append(number)
            cluster_end = max(cluster_end, start + size)
            continue
        if len(cluster) == 1:
            # Nearly always: a range that touches no other.
            pieces.append(make_piece(Piece, (cluster[0], starts[cluster[0]], cluster_end)))
        else:
            _close(cluster, ranges, pieces, dropped, overlapped)
            seen = set()
        cluster = [number]
        cluster_end = start + size
    _close(cluster, ranges, pieces, dropped, overlapped)
    return Arrangement(tuple(pieces), dropped, frozenset(overlapped))


def _close(
    cluster: list[int],
    ranges: Sequence[Range],
    pieces: list[Piece],
    dropped: dict[int, DropReason],
    overlapped: set[int],
) -> None:
    """Settle a run of ranges that touch only one another."""
    won: dict[int, int] = {}
    for piece in _sweep(cluster, ranges):
        pieces.append(piece)
        won[piece.number] = won.get(piece.number, 0) + piece.end_vaddr - piece.start_vaddr
    for number in cluster:
        if number not in won:
            dropped[number] = DropReason.SHADOWED
        elif won[number] != ranges[number].size:
            overlapped.add(number)


def _sweep(cluster: list[int], ranges: Sequence[Range]) -> list[Piece]:
    edges = sorted({edge for n in cluster for edge in (ranges[n].start_vaddr, ranges[n].start_vaddr + ranges[n].size)})
    # Candidates by (latest start, first in the section); those that have ended are thrown out when they come up.
    candidates: list[tuple[int, int]] = []
    pieces: list[Piece] = []
    waiting = 0
    for edge, next_edge in pairwise(edges):
        while waiting < len(cluster) and ranges[cluster[waiting]].start_vaddr <= edge:
            heappush(candidates, (-ranges[cluster[waiting]].start_vaddr, cluster[waiting]))
            waiting += 1
        while candidates and ranges[candidates[0][1]].start_vaddr + ranges[candidates[0][1]].size <= edge:
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
    rows = body.rows
    if start_delta == 0 and rows[-1].start_delta < end_delta:
        return body
    first = bisect_right(rows, start_delta, key=_start_of) - 1
    kept = [rows[first]._replace(start_delta=0)]
    # Found and not sliced: many small pieces of one long list must not copy its rest each time.
    for number in range(first + 1, bisect_left(rows, end_delta, key=_start_of)):
        kept.append(rows[number]._replace(start_delta=rows[number].start_delta - start_delta))
    return body._replace(rows=tuple(kept))


def _start_of(row: FrameRow) -> int:
    return row.start_delta


def split_points(body: FunctionBody, max_row_count: int) -> tuple[int, ...]:
    """Return the deltas at which a body has to be cut so that no part has more than `max_row_count` rows; 0 first."""
    return tuple(row.start_delta for row in body.rows[::max_row_count])
