# SPDX-License-Identifier: Apache-2.0
"""The ranges of all stretches: rounds of partitions, until the row lists that they share are paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.splitting.candidates import Candidates
from cfi2sframe.sframe.splitting.partition import Partitioner, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.splitting.columns import Columns
    from cfi2sframe.sframe.splitting.prices import Prices
    from cfi2sframe.sframe.splitting.stretches import Stretch

#: Rounds in which all stretches are partitioned by the average cost of using a list, before each is improved by itself.
_ROUNDS: Final = 2


def choose_ranges(columns: Columns, stretches: list[Stretch], prices: Prices, budget: Budget) -> list[list[Range]]:
    """Choose the ranges of each stretch, to make records and row lists together small.

    The cost of using a row list depends on how many other ranges use it, which is not known before they are chosen. So
    all stretches are first partitioned by average costs: in the first round as if all candidates were chosen, then by
    the choices of the round before. Then each stretch is partitioned once more while all others keep their ranges: a
    list that another stretch uses costs only its record there. Raises `BudgetError` when there are more candidates than
    `budget` allows.
    """
    candidates = Candidates(columns, stretches, prices, budget)
    partitioner = Partitioner(columns, candidates, prices)
    choices: list[list[Range]] = []
    uses = candidates.use_counts
    for _ in range(_ROUNDS):
        costs = [
            prices.record_size + size / max(count, 1) for size, count in zip(candidates.list_sizes, uses, strict=True)
        ]
        choices = [partitioner.partition(stretch, costs) for stretch in stretches]
        uses = [0] * len(costs)
        for stretch, ranges in zip(stretches, choices, strict=True):
            for number in _stored_lists(ranges, partitioner):
                uses[number] += stretch.use_count
    _improve(partitioner, stretches, choices, uses)
    return choices


def _improve(partitioner: Partitioner, stretches: list[Stretch], choices: list[list[Range]], uses: list[int]) -> None:
    """Partition each stretch once more, given the row lists that all others use."""
    record_size, sizes = partitioner.prices.record_size, partitioner.candidates.list_sizes
    costs: list[float] = [record_size + (0 if count else size) for size, count in zip(sizes, uses, strict=True)]
    for index, stretch in enumerate(stretches):
        ranges = choices[index]
        stored = list(_stored_lists(ranges, partitioner))
        for number in stored:
            uses[number] -= stretch.use_count
        unused = [number for number in stored if not uses[number]]
        for number in unused:
            costs[number] = record_size + sizes[number] / stretch.use_count
        better = partitioner.partition(stretch, costs)
        if better != ranges and (
            partitioner.cost(better, stretch.use_count, uses) < partitioner.cost(ranges, stretch.use_count, uses)
        ):
            for number in unused:
                costs[number] = record_size + sizes[number]
            choices[index] = better
            stored = list(_stored_lists(better, partitioner))
        for number in stored:
            uses[number] += stretch.use_count
            costs[number] = record_size


def _stored_lists(ranges: list[Range], partitioner: Partitioner) -> Iterator[int]:
    """Yield the numbers of the row lists that other ranges can use once these ranges are stored."""
    if not partitioner.prices.shares_beginnings:
        for each in ranges:
            if each.list_number is not None:
                yield each.list_number
        return
    columns = partitioner.columns
    for first, last, _ in ranges:
        start_size = columns.start_size(first, last)
        for end, number in partitioner.candidates.ranges_at[first]:
            if end <= last and columns.start_size(first, end) == start_size:
                yield number
