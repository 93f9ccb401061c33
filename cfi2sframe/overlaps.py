# SPDX-License-Identifier: Apache-2.0
"""The ranges of FDEs to ranges that every reader accepts: none is empty, discarded, repeated or overlapping.

Knows FDEs by their numbers and ranges only. An address in several ranges belongs to the one of the best source; of its
ranges, to the one that starts last (as in the search table of `.eh_frame_hdr`), and of several such to the first in the
section's order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import add, attrgetter, gt, sub
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.ranges import without
from cfi2sframe.reasons import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


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
        """Return what is left outside of some ascending ranges that do not overlap."""
        if not taken:
            return self
        starts, ends = zip(*taken, strict=True)
        # Stubs are close together, and most pieces are far from them.
        near = slice(bisect_right(self.ends, starts[0]), bisect_left(self.starts, ends[-1]))
        left: list[Piece] = []
        for number, start, end in Pieces(*(column[near] for column in self)).records:
            cuts = taken[bisect_right(ends, start) : bisect_left(starts, end)]
            left += [Piece(number, *span) for span in without([(start, end)], cuts)]
        columns = zip(self, Pieces.of(left), strict=True)
        return Pieces(*((*all_[: near.start], *cut, *all_[near.stop :]) for all_, cut in columns))


class Resolved(NamedTuple):
    """The addresses that each FDE keeps; by number, the FDEs that are dropped, and those that lost some addresses."""

    pieces: Pieces
    dropped: dict[int, DropReason]
    overlapped: frozenset[int]


def resolve_overlaps(ranges: Ranges, not_code: Callable[[Sequence[int], Sequence[int]], list[int]]) -> Resolved:
    """Give each address to one FDE at most.

    `not_code(starts, ends)` returns the indices of the ranges that are not executable; `starts` ascend.
    """
    pieces = Pieces()
    dropped: dict[int, DropReason] = {}
    for numbers in ranges.groups:
        found = _resolve_source(ranges, numbers, not_code, dropped)
        if pieces.numbers:
            left = found.without(list(zip(pieces.starts, pieces.ends, strict=True)))
            dropped.update(dict.fromkeys(set(found.numbers).difference(left.numbers), DropReason.BETTER_SOURCE))
            found = Pieces.of(sorted((*pieces.records, *left.records), key=attrgetter("start_vaddr")))
        pieces = found
    held = map(sub, pieces.ends, pieces.starts)
    whole = map(ranges.sizes.__getitem__, pieces.numbers)
    overlapped = {number for number, size, full in zip(pieces.numbers, held, whole, strict=True) if size != full}
    return Resolved(pieces, dropped, frozenset(overlapped))


def _resolve_source(
    ranges: Ranges,
    numbers: Sequence[int],
    not_code: Callable[[Sequence[int], Sequence[int]], list[int]],
    dropped: dict[int, DropReason],
) -> Pieces:
    """Give each address to one FDE of a source at most; FDEs without any go to `dropped`."""
    order = sorted(numbers, key=ranges.starts.__getitem__)
    starts, sizes = tuple(map(ranges.starts.__getitem__, order)), tuple(map(ranges.sizes.__getitem__, order))
    pieces = Pieces(tuple(order), starts, tuple(map(add, starts, sizes)))
    unusable = {order[index]: DropReason.DISCARDED for index in not_code(starts, pieces.ends)}
    if 0 in sizes:
        unusable.update((number, DropReason.EMPTY) for number, size in zip(order, sizes, strict=True) if size == 0)
    if unusable:
        dropped.update(unusable)
        pieces = Pieces.of(piece for piece in pieces.records if piece.number not in unusable)
    if not any(map(gt, pieces.ends, pieces.starts[1:])):
        return pieces
    settled: list[Piece] = []
    for cluster in _clusters(pieces.records):
        settled += _settle(cluster, ranges, dropped) if len(cluster) > 1 else cluster
    return Pieces.of(settled)


def _clusters(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the runs of pieces, in ascending order of their starts, that overlap; most pieces are one by themselves."""
    cluster: list[Piece] = []
    end_vaddr = 0
    for piece in pieces:
        if cluster and piece.start_vaddr >= end_vaddr:
            yield cluster
            cluster = []
        cluster.append(piece)
        end_vaddr = max(end_vaddr, piece.end_vaddr)
    yield cluster


def _settle(cluster: list[Piece], ranges: Ranges, dropped: dict[int, DropReason]) -> list[Piece]:
    """Return the pieces of a run of overlapping ranges; FDEs that have none go to `dropped`."""
    different: dict[tuple[int, int, int], Piece] = {}
    for piece in cluster:
        number, start_vaddr, end_vaddr = piece
        if different.setdefault((start_vaddr, end_vaddr, ranges.contents[number]), piece) is not piece:
            dropped[number] = DropReason.DUPLICATE
    pieces = _sweep(different.values())
    winners = {piece.number for piece in pieces}
    dropped.update((each.number, DropReason.SHADOWED) for each in different.values() if each.number not in winners)
    return pieces


def _sweep(ranges: Iterable[Piece]) -> list[Piece]:
    """Return the pieces of a run of overlapping ranges, in ascending order."""
    # On the stack, the range that starts last is on top, and of equal starts the first in the section.
    waiting = sorted(ranges, key=lambda each: (-each.start_vaddr, each.number))
    edges = sorted({vaddr for _, start_vaddr, end_vaddr in waiting for vaddr in (start_vaddr, end_vaddr)})
    stack: list[Piece] = []
    pieces: list[Piece] = []
    for edge, next_edge in pairwise(edges):
        while waiting and waiting[-1].start_vaddr == edge:
            stack.append(waiting.pop())
        while stack[-1].end_vaddr <= edge:
            stack.pop()
        number = stack[-1].number
        if pieces and pieces[-1].number == number:
            pieces[-1] = pieces[-1]._replace(end_vaddr=next_edge)
        else:
            pieces.append(Piece(number, edge, next_edge))
    return pieces
