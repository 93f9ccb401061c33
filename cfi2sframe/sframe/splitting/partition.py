# SPDX-License-Identifier: Apache-2.0
"""The ranges of each stretch that cost the fewest bytes, by dynamic programming over its cuts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.splitting.candidates import Candidates

if TYPE_CHECKING:
    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.splitting.columns import Columns
    from cfi2sframe.sframe.splitting.stretches import Stretch

#: Rounds in which all stretches are partitioned by the average cost of using a list, before each is improved by itself.
_ROUNDS: Final = 2
_INFINITE: Final = float("inf")
#: The most rows of a range whose list no other range uses: readers walk them one after the other. With 20, fewer rows
#: are walked than at -O1, for 2 % more bytes than without a limit (git: 7 and 13; docs/size-and-speed.md).
MAX_ROWS: Final = 20
#: The largest row start, counted from the range's start, that fits start fields of one byte, and of two.
_MAX_START_1: Final = 0xFF
_MAX_START_2: Final = 0xFFFF


class Range(NamedTuple):
    """A range between two cuts, and the number of its row list (None: no other range has these rows)."""

    first_cut: int
    last_cut: int
    list_number: int | None


class Partitioner:
    """Finds the cheapest ranges of stretches, given the cost of each row list that recurs.

    Costs are bytes. A row list that only one range uses costs the sum of its rows. The beginning that is best for a
    range that ends at some cut therefore stays the best one for later cuts, until the last start no longer fits its
    field, or the rows are too many. A queue for each width of starts keeps the cheapest open beginnings, and each cut
    is visited once.
    """

    def __init__(self, columns: Columns, candidates: Candidates, record_size: int, attribute_size: int) -> None:
        self.columns = columns
        self.candidates = candidates
        self.record_size = record_size
        self.attribute_size = attribute_size

    def partition(self, stretch: Stretch, list_costs: list[float]) -> list[Range]:
        """Return the cheapest ranges of a stretch; `list_costs[N]` is the cost of one use of list N, with a record."""
        columns, ranges_at = self.columns, self.candidates.ranges_at
        tail_ends, deltas = columns.tail_ends, columns.deltas
        cut_rows, cut_ends, cut_deltas = columns.cut_rows, columns.cut_ends, columns.cut_deltas
        base, last_cut, use_count = stretch
        last = last_cut - base
        fixed = self.record_size * use_count + self.attribute_size
        # The cost of the ranges from the stretch's start to each cut, and the last of these ranges. Cuts count from
        # the stretch's first one.
        costs: list[float] = [0.0] + [_INFINITE] * last
        last_ranges: list[tuple[int, int | None]] = [(0, None)] * (last + 1)
        # Ranges that may still become the cheapest, with starts of one byte and of two, as (cost without the rows up to
        # a later end, first cut). Costs ascend in a queue; the first item is dropped once its starts no longer fit.
        open_1: deque[tuple[float, int]] = deque()
        open_2: deque[tuple[float, int]] = deque()
        # The first cut from which a range does not have too many rows.
        oldest = 0
        for here in range(last + 1):
            cut = base + here
            cost = costs[here]
            if here:
                end = cut_ends[cut]
                last_start = deltas[end - 1]
                # From one cut to the next there is no choice, however many rows lie between them.
                while oldest < here - 1 and end - cut_rows[base + oldest] > MAX_ROWS:
                    oldest += 1
                while open_1 and (open_1[0][1] < oldest or last_start - cut_deltas[base + open_1[0][1]] > _MAX_START_1):
                    open_1.popleft()
                while open_2 and (open_2[0][1] < oldest or last_start - cut_deltas[base + open_2[0][1]] > _MAX_START_2):
                    open_2.popleft()
                own = fixed + tail_ends[end] + end
                if open_1 and open_1[0][0] + own < cost:
                    cost, last_ranges[here] = open_1[0][0] + own, (open_1[0][1], None)
                own += end
                if open_2 and open_2[0][0] + own < cost:
                    cost, last_ranges[here] = open_2[0][0] + own, (open_2[0][1], None)
                costs[here] = cost
            row = cut_rows[cut]
            opened = cost - tail_ends[row] - row
            while open_1 and opened <= open_1[-1][0]:
                open_1.pop()
            open_1.append((opened, here))
            opened -= row
            while open_2 and opened <= open_2[-1][0]:
                open_2.pop()
            open_2.append((opened, here))
            for range_end, number in ranges_at[cut]:
                total = cost + use_count * list_costs[number]
                if total < costs[range_end - base]:
                    costs[range_end - base] = total
                    last_ranges[range_end - base] = (here, number)
        # A few rows that are far apart may be cheapest in one range with starts of four bytes.
        if (
            deltas[cut_ends[last_cut] - 1] > _MAX_START_2
            and cut_ends[last_cut] - cut_rows[base] <= MAX_ROWS
            and fixed + columns.rows_size(base, last_cut) < costs[last]
        ):
            return [Range(base, last_cut, None)]
        return _trace_back(base, last, last_ranges)

    def cost(self, ranges: list[Range], use_count: int, other_uses: list[int]) -> int:
        """Return the bytes of a stretch's ranges: their records, and once each row list that no other stretch uses."""
        own_size = sum(
            self.attribute_size + self.columns.rows_size(each.first_cut, each.last_cut)
            for each in ranges
            if each.list_number is None
        )
        new_lists = {
            each.list_number for each in ranges if each.list_number is not None and not other_uses[each.list_number]
        }
        new_size = sum(self.candidates.list_sizes[number] for number in new_lists)
        return use_count * self.record_size * len(ranges) + own_size + new_size


def _trace_back(base: int, last: int, last_ranges: list[tuple[int, int | None]]) -> list[Range]:
    ranges: list[Range] = []
    while last:
        first, number = last_ranges[last]
        ranges.append(Range(base + first, base + last, number))
        last = first
    return ranges[::-1]


def choose_ranges(columns: Columns, stretches: list[Stretch], version: int, budget: Budget) -> list[list[Range]]:
    """Choose the ranges of each stretch, to make records and row lists together small.

    The cost of using a row list depends on how many other ranges use it, which is not known before they are chosen. So
    all stretches are first partitioned by average costs: in the first round as if all candidates were chosen, then by
    the choices of the round before. Then each stretch is partitioned once more while all others keep their ranges: a
    list that another stretch uses costs only its record there. Raises `BudgetError` when there are more candidates than
    `budget` allows.
    """
    record_size = s.FDE_SIZE[version]
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    candidates = Candidates(columns, stretches, attribute_size, budget)
    partitioner = Partitioner(columns, candidates, record_size, attribute_size)
    choices: list[list[Range]] = []
    uses = candidates.use_counts
    for _ in range(_ROUNDS):
        costs = [record_size + size / max(count, 1) for size, count in zip(candidates.list_sizes, uses, strict=True)]
        choices = [partitioner.partition(stretch, costs) for stretch in stretches]
        uses = [0] * len(costs)
        for stretch, ranges in zip(stretches, choices, strict=True):
            for number in _lists_of(ranges):
                uses[number] += stretch.use_count
    _improve(partitioner, stretches, choices, uses)
    return choices


def _improve(partitioner: Partitioner, stretches: list[Stretch], choices: list[list[Range]], uses: list[int]) -> None:
    """Partition each stretch once more, given the row lists that all others use."""
    record_size, sizes = partitioner.record_size, partitioner.candidates.list_sizes
    costs: list[float] = [record_size + (0 if count else size) for size, count in zip(sizes, uses, strict=True)]
    for index, stretch in enumerate(stretches):
        ranges = choices[index]
        for number in _lists_of(ranges):
            uses[number] -= stretch.use_count
        unused = [number for number in _lists_of(ranges) if not uses[number]]
        for number in unused:
            costs[number] = record_size + sizes[number] / stretch.use_count
        better = partitioner.partition(stretch, costs)
        if better != ranges and (
            partitioner.cost(better, stretch.use_count, uses) < partitioner.cost(ranges, stretch.use_count, uses)
        ):
            for number in unused:
                costs[number] = record_size + sizes[number]
            choices[index] = better
        for number in _lists_of(choices[index]):
            uses[number] += stretch.use_count
            costs[number] = record_size


def _lists_of(ranges: list[Range]) -> list[int]:
    """Return the numbers of the row lists of ranges, without those that only one range uses."""
    return [each.list_number for each in ranges if each.list_number is not None]
