# SPDX-License-Identifier: Apache-2.0
"""Which FDEs hold an address where FDEs overlap, found by one sweep over their edges."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from cfi2sframe.dwarf.programs import CfiEntry

#: A row is compared with at most so many FDEs of its address. Linkers produce two or three; a hostile file may have
#: thousands, and comparing all of them at each of their edges would be quadratic.
MAX_CANDIDATES: Final = 16


class Holding(NamedTuple):
    """Addresses `[start_vaddr, end_vaddr)` and the FDEs that hold all of them.

    They are of the best source that has any here, whose rank is `source`; what other sources say does not count.
    `entries` are at most `MAX_CANDIDATES`. The first is the one that unwinders find: the FDE that starts last, and of
    several such the first in the section. `may_be_absent`: SFrame cannot express one of the FDEs here, which need not
    be among `entries`.
    """

    start_vaddr: int
    end_vaddr: int
    entries: tuple[CfiEntry, ...]
    may_be_absent: bool
    source: int


def find_holdings(
    entries: Sequence[CfiEntry], skipped: Container[int], rank_of: Callable[[int], int]
) -> Iterator[Holding]:
    """Yield the addresses that FDEs hold, in ascending order, cut wherever an FDE starts or ends.

    The FDEs have to be sorted by their starts and to have at least one byte each; `skipped` are the numbers of those
    that the section's version cannot express. `rank_of` returns the rank of an FDE's source; the best one has 0.
    """
    ranks = [rank_of(entry.number) for entry in entries]
    starts = [entry.fde.pc_begin_vaddr for entry in entries]
    ends = [start + entry.fde.pc_range for start, entry in zip(starts, entries, strict=True)]
    by_end = sorted(range(len(entries)), key=ends.__getitem__)
    # For each source, (start, -number) of the FDEs that hold this edge; the one that unwinders find comes last.
    holdings: list[list[tuple[int, int]]] = [[] for _ in range(max(ranks, default=0) + 1)]
    skip_counts = [0] * len(holdings)
    opened = closed = 0
    for edge, next_edge in pairwise(sorted({*starts, *ends})):
        while ends[by_end[closed]] <= edge:
            number = by_end[closed]
            holding = holdings[ranks[number]]
            del holding[bisect_left(holding, (starts[number], -number))]
            skip_counts[ranks[number]] -= entries[number].number in skipped
            closed += 1
        while opened < len(entries) and starts[opened] <= edge:
            insort(holdings[ranks[opened]], (starts[opened], -opened))
            skip_counts[ranks[opened]] += entries[opened].number in skipped
            opened += 1
        for source, holding in enumerate(holdings):
            if holding:
                candidates = tuple(entries[-number] for _, number in reversed(holding[-MAX_CANDIDATES:]))
                yield Holding(edge, next_edge, candidates, skip_counts[source] > 0, source)
                break
