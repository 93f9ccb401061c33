# SPDX-License-Identifier: Apache-2.0
"""The ranges of a stretch that cost least, by dynamic programming over its cuts."""

from __future__ import annotations

from array import array
from collections import deque
from itertools import count, islice
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.sframe.splitting.candidates import Candidates
    from cfi2sframe.sframe.splitting.columns import Columns
    from cfi2sframe.sframe.splitting.prices import Prices
    from cfi2sframe.sframe.splitting.stretches import Stretch

_INFINITE: Final = float("inf")
#: The largest row start, counted from the range's start, that fits start fields of one byte, and of two.
_MAX_START_1: Final = 0xFF
_MAX_START_2: Final = 0xFFFF


class Range(NamedTuple):
    """A range between two cuts, and the number of its row list (None: no other range has these rows)."""

    first_cut: int
    last_cut: int
    list_number: int | None


class _CutCosts(NamedTuple):
    """What the cheapest range without a shared list depends on, for each cut.

    Such a range costs its record, its attribute, and for each row a start, an info byte and data words. With starts of
    one byte that is `closing_1` of its last cut minus `opening_1` of its first, and with two bytes the same of
    `closing_2` and `opening_2`. `oldest_1` and `oldest_2` are the first cuts where such a range may begin: its starts
    fit, and it has no more rows than allowed.
    """

    opening_1: array[int]
    opening_2: array[int]
    closing_1: array[int]
    closing_2: array[int]
    oldest_1: array[int]
    oldest_2: array[int]


class Partitioner:
    """Finds the cheapest ranges of stretches, given the cost of each row list that recurs.

    Costs are bytes. A row list that only one range uses costs the sum of its rows. The beginning that is best for a
    range that ends at some cut therefore stays the best one for later cuts, until the last start no longer fits its
    field, or the rows are too many. A queue for each width of starts keeps the cheapest open beginnings, and each cut
    is visited once. Where rows walked have a price, which grows with the rows of a range and its bytes, every beginning
    is tried for every end.
    """

    def __init__(self, columns: Columns, candidates: Candidates, prices: Prices) -> None:
        self.columns = columns
        self.candidates = candidates
        self.prices = prices
        rows, ends, tails = columns.cut_rows, columns.cut_ends, columns.tail_ends
        self._cuts = _CutCosts(
            array("Q", [tails[row] + row for row in rows]),
            array("Q", [tails[row] + 2 * row for row in rows]),
            array("Q", [tails[end] + end for end in ends]),
            array("Q", [tails[end] + 2 * end for end in ends]),
            *_oldest_cuts(columns, prices.max_rows),
        )
        #: The beginnings that are tried for all ends where rows walked have a price.
        self.trial_count: Final = sum(map(sub, count(), self._cuts.oldest_2))

    def partition(self, stretch: Stretch, list_costs: list[float]) -> list[Range]:
        """Return the cheapest ranges of a stretch; `list_costs[N]` is the cost of one use of list N, with a record."""
        if self.prices.walk_price:
            return self._partition_walked(stretch, list_costs)
        base, last_cut, use_count, _ = stretch
        fixed = self.prices.record_size * use_count + self.prices.attribute_size
        # The cost of the ranges from the stretch's start to each cut; of the last of these ranges, the first cut and
        # the number of the list (-1: a list of its own).
        costs = [0.0] + [_INFINITE] * (last_cut - base)
        froms = [base] * len(costs)
        lists = [-1] * len(costs)
        # Ranges that may still become the cheapest, with starts of one byte and of two, as (cost without the rows up to
        # a later end, first cut). Costs ascend in a queue; the first item is dropped once its starts no longer fit.
        open_1: deque[tuple[float, int]] = deque()
        open_2: deque[tuple[float, int]] = deque()
        window = slice(base, last_cut + 1)
        found, counts = self._candidates_of(stretch, list_costs)
        for here, (opening_1, opening_2, closing_1, closing_2, oldest_1, oldest_2) in enumerate(
            zip(*[column[window] for column in self._cuts], strict=True)
        ):
            cost = costs[here]
            if here:
                while open_1 and open_1[0][1] < oldest_1:
                    open_1.popleft()
                if open_1 and open_1[0][0] + fixed + closing_1 < cost:
                    cost, froms[here], lists[here] = open_1[0][0] + fixed + closing_1, open_1[0][1], -1
                if oldest_2 < oldest_1:
                    while open_2[0][1] < oldest_2:
                        open_2.popleft()
                    if open_2[0][0] + fixed + closing_2 < cost:
                        cost, froms[here], lists[here] = open_2[0][0] + fixed + closing_2, open_2[0][1], -1
                costs[here] = cost
            opened = cost - opening_1
            while open_1 and opened <= open_1[-1][0]:
                open_1.pop()
            open_1.append((opened, base + here))
            opened = cost - opening_2
            while open_2 and opened <= open_2[-1][0]:
                open_2.pop()
            open_2.append((opened, base + here))
            for there, list_cost, number in islice(found, counts[here]):
                total = cost + list_cost
                if total < costs[there]:
                    costs[there], froms[there], lists[there] = total, base + here, number
        return self._trace_back(stretch, costs[-1] - fixed, froms, lists)

    def _partition_walked(self, stretch: Stretch, list_costs: list[float]) -> list[Range]:
        """Do the same where rows walked have a price.

        The rows that readers walk in a range are those of its last cut, less those of its first, less the first cut's
        row number for each byte before the last cut (`Columns.walked_count`, multiplied out).
        """
        columns, (base, last_cut, use_count, _) = self.columns, stretch
        price = self.prices.walk_price * use_count
        fixed = self.prices.record_size * use_count + self.prices.attribute_size
        window = slice(base, last_cut + 1)
        first_row, sums = columns.cut_rows[base], columns.delta_sums
        rows, ends, deltas = columns.cut_rows[window], columns.cut_ends[window], columns.cut_deltas[window]
        opening_1, opening_2, closing_1, closing_2, oldest_1, oldest_2 = (column[window] for column in self._cuts)
        # The price of the rows walked up to each cut, as if the range began with the stretch.
        walks = [
            price * ((end - first_row) * delta - sums[end] + sums[first_row])
            for end, delta in zip(ends, deltas, strict=True)
        ]
        narrow = [fixed + closing + walk for closing, walk in zip(closing_1, walks, strict=True)]
        wide = [fixed + closing + walk for closing, walk in zip(closing_2, walks, strict=True)]
        costs = [0.0] + [_INFINITE] * (last_cut - base)
        froms = [base] * len(costs)
        lists = [-1] * len(costs)
        last_1 = last_2 = 0
        found, counts = self._candidates_of(stretch, list_costs)
        for here in range(last_cut - base):
            cut, row = base + here, rows[here]
            slope = price * (row - first_row)
            begin = columns.deltas[row] - deltas[here] + sums[row] - sums[first_row]
            cost = costs[here] + price * begin
            while last_2 < last_cut - base and oldest_2[last_2 + 1] <= cut:
                last_2 += 1
            while last_1 < last_2 and oldest_1[last_1 + 1] <= cut:
                last_1 += 1
            opened = cost - opening_1[here]
            for there in range(here + 1, last_1 + 1):
                total = opened + narrow[there] - slope * deltas[there]
                if total < costs[there]:
                    costs[there], froms[there], lists[there] = total, cut, -1
            opened = cost - opening_2[here]
            for there in range(max(here, last_1) + 1, last_2 + 1):
                total = opened + wide[there] - slope * deltas[there]
                if total < costs[there]:
                    costs[there], froms[there], lists[there] = total, cut, -1
            for there, list_cost, number in islice(found, counts[here]):
                total = cost + list_cost + walks[there] - slope * deltas[there]
                if total < costs[there]:
                    costs[there], froms[there], lists[there] = total, cut, number
        return self._trace_back(stretch, costs[-1] - fixed, froms, lists)

    def _candidates_of(
        self, stretch: Stretch, list_costs: list[float]
    ) -> tuple[Iterator[tuple[int, float, int]], list[int]]:
        """Return the ranges of a stretch that could use lists, and how many of them begin at each cut, in this order.

        They are (last cut, cost of all uses, list number); cuts are counted from the stretch's first.
        """
        base, last_cut, use_count, _ = stretch
        firsts = self.candidates.firsts[base : last_cut + 2]
        these = slice(firsts[0], firsts[-1])
        lists = self.candidates.range_lists[these]
        ends = [end - base for end in self.candidates.range_ends[these]]
        costs = map(list_costs.__getitem__, lists) if use_count == 1 else [use_count * list_costs[n] for n in lists]
        return zip(ends, costs, lists, strict=True), list(map(sub, firsts[1:], firsts))

    def _trace_back(self, stretch: Stretch, most: float, froms: list[int], lists: list[int]) -> list[Range]:
        """Return the ranges found; or a single one, if its rows cost less than `most`."""
        columns, base, last = self.columns, stretch.first_cut, stretch.last_cut
        # A few rows that are far apart may be cheapest in one range with starts of four bytes.
        row_count = columns.cut_ends[last] - columns.cut_rows[base]
        if row_count <= self.prices.max_rows and columns.start_size(base, last) > 2:
            walk = self.prices.walk_price * stretch.use_count * columns.walked_count(base, last)
            if columns.rows_size(base, last) + walk < most:
                return [Range(base, last, None)]
        ranges: list[Range] = []
        while last > base:
            first, number = froms[last - base], lists[last - base]
            ranges.append(Range(first, last, number if number >= 0 else None))
            last = first
        return ranges[::-1]

    def cost(self, ranges: list[Range], use_count: int, other_uses: list[int]) -> float:
        """Return the bytes of a stretch's ranges: their records, and once each row list that no other stretch uses.

        The price of the rows walked is added.
        """
        own_size = sum(
            self.prices.attribute_size + self.columns.rows_size(each.first_cut, each.last_cut)
            for each in ranges
            if each.list_number is None
        )
        new_lists = {
            each.list_number for each in ranges if each.list_number is not None and not other_uses[each.list_number]
        }
        new_size = sum(self.candidates.list_sizes[number] for number in new_lists)
        size = use_count * self.prices.record_size * len(ranges) + own_size + new_size
        return size + self.prices.walk_price * use_count * self.walked_count(ranges)

    def walked_count(self, ranges: list[Range]) -> int:
        """Return the rows that readers walk for all addresses of a stretch together."""
        return sum(self.columns.walked_count(each.first_cut, each.last_cut) for each in ranges)


def _oldest_cuts(columns: Columns, max_rows: int) -> tuple[array[int], array[int]]:
    """Return the first cuts where ranges may begin that end at each cut, with starts of one byte and of two."""
    rows, deltas, last_cuts = columns.cut_rows, columns.cut_deltas, columns.last_cuts
    row_deltas = columns.deltas
    oldest_1 = array("I")
    oldest_2 = array("I")
    first_1 = first_2 = 0
    last = -1
    for cut, end in enumerate(columns.cut_ends):
        if cut > last:
            first_1 = first_2 = cut
            last = last_cuts[cut]
        # From one cut to the next there is no choice, however many rows lie between them.
        while end - rows[first_2] > max_rows and first_2 < cut - 1:
            first_2 += 1
        last_start = row_deltas[end - 1]
        while last_start - deltas[first_2] > _MAX_START_2 and first_2 < cut:
            first_2 += 1
        first_1 = max(first_1, first_2)
        while last_start - deltas[first_1] > _MAX_START_1 and first_1 < cut:
            first_1 += 1
        oldest_1.append(first_1)
        oldest_2.append(first_2)
    return oldest_1, oldest_2
