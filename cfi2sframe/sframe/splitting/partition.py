# SPDX-License-Identifier: Apache-2.0
"""The cheapest way to put ranges one behind the other over a stretch of code, by dynamic programming."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.sframe.splitting.candidates import Recurring
    from cfi2sframe.sframe.splitting.stretches import Columns, Stretch

#: The list of a range whose rows recur nowhere.
OWN_LIST: Final = -1
_NEVER: Final = float("inf")
#: The last row of a range whose starts take one byte, and two.
_REACH_1: Final = 0xFF
_REACH_2: Final = 0xFFFF


class Range(NamedTuple):
    """A range between two cuts, and the number of its list (`OWN_LIST`: one that recurs nowhere)."""

    first_cut: int
    last_cut: int
    list_number: int


class Programme:
    """Finds the cheapest ranges of stretches for given costs of the lists that recur.

    Costs are bytes. A list of its own costs each row by itself, so that the best beginning of a range that ends at
    some cut is the same for all later cuts too, until the distance needs wider starts: one look at each cut will do.
    """

    def __init__(self, columns: Columns, recurring: Recurring, record_size: int, attribute_size: int) -> None:
        self.columns = columns
        self.recurring = recurring
        self.record_size = record_size
        self.attribute_size = attribute_size

    def cheapest(self, stretch: Stretch, costs: list[float]) -> list[Range]:
        """Return the cheapest ranges of a stretch; `costs` are those of one use of each list, with its record."""
        columns, options = self.columns, self.recurring.options
        words_ends, deltas = columns.words_ends, columns.deltas
        cut_rows, cut_ends, cut_deltas = columns.cut_rows, columns.cut_ends, columns.cut_deltas
        base, last_cut, use_count = stretch
        last = last_cut - base
        fixed = self.record_size * use_count + self.attribute_size
        best: list[float] = [0.0] + [_NEVER] * last
        how: list[tuple[int, int]] = [(0, OWN_LIST)] * (last + 1)
        # Ranges not ended yet, with starts of one and of two bytes: cost but for the rows' ends, and beginning. Each
        # is dearer than those before it, and may become the cheapest when these begin too far back.
        open_1: deque[tuple[float, int]] = deque()
        open_2: deque[tuple[float, int]] = deque()
        for here in range(last + 1):
            cut = base + here
            cost = best[here]
            if here:
                end = cut_ends[cut]
                last_row = deltas[end - 1]
                while open_1 and last_row - cut_deltas[base + open_1[0][1]] > _REACH_1:
                    open_1.popleft()
                while open_2 and last_row - cut_deltas[base + open_2[0][1]] > _REACH_2:
                    open_2.popleft()
                own = fixed + words_ends[end] + end
                if open_1 and open_1[0][0] + own < cost:
                    cost, how[here] = open_1[0][0] + own, (open_1[0][1], OWN_LIST)
                own += end
                if open_2 and open_2[0][0] + own < cost:
                    cost, how[here] = open_2[0][0] + own, (open_2[0][1], OWN_LIST)
                best[here] = cost
            row = cut_rows[cut]
            opened = cost - words_ends[row] - row
            while open_1 and opened <= open_1[-1][0]:
                open_1.pop()
            open_1.append((opened, here))
            opened -= row
            while open_2 and opened <= open_2[-1][0]:
                open_2.pop()
            open_2.append((opened, here))
            for to, number in options[cut]:
                total = cost + use_count * costs[number]
                if total < best[to - base]:
                    best[to - base] = total
                    how[to - base] = (here, number)
        # Far from one another, a few rows may be cheapest with starts of four bytes.
        if deltas[cut_ends[last_cut] - 1] > _REACH_2 and fixed + columns.rows_size(base, last_cut) < best[last]:
            return [Range(base, last_cut, OWN_LIST)]
        return _way_back(base, last, how)

    def is_cheaper(self, some: list[Range], others: list[Range], use_count: int, list_uses: list[int]) -> bool:
        """Whether some ranges of a stretch cost less than others, given the uses of each list elsewhere."""
        return self._true_cost(some, use_count, list_uses) < self._true_cost(others, use_count, list_uses)

    def _true_cost(self, ranges: list[Range], use_count: int, list_uses: list[int]) -> int:
        """Return what ranges cost: their records, and the lists that nobody else uses, each once."""
        own_size = sum(
            self.attribute_size + self.columns.rows_size(first, last)
            for first, last, number in ranges
            if number == OWN_LIST
        )
        numbers = {number for _, _, number in ranges if number != OWN_LIST and not list_uses[number]}
        new_size = sum(map(self.recurring.sizes.__getitem__, numbers))
        return use_count * self.record_size * len(ranges) + own_size + new_size


def _way_back(base: int, last: int, how: list[tuple[int, int]]) -> list[Range]:
    ranges: list[Range] = []
    while last:
        first, number = how[last]
        ranges.append(Range(base + first, base + last, number))
        last = first
    return ranges[::-1]
