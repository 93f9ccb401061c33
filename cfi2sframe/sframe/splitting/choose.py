# SPDX-License-Identifier: Apache-2.0
"""The ranges of all stretches: rounds of partitions, until the row lists that they share are paid for.

Where a look-up would then cost more than it may, rows walked get a price as well, and the price is sought at which the
ranges cost as much as they may.
"""

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
#: The first price of a row walked that is tried: near what libraries of AArch64 and s390x need.
_FIRST_PRICE: Final = 0.003
#: Prices that are tried at most, and how near to what is allowed ends the search.
_PRICE_COUNT: Final = 4
_NEAR: Final = 0.96
#: After that, a price that is a little too low grows by this factor, so often at most.
_GROWTH: Final = 1.1
_GROWTH_COUNT: Final = 8
#: Beginnings of ranges that can be tried in a microsecond.
_TRIALS_PER_STEP: Final = 4


def choose_ranges(
    columns: Columns, stretches: list[Stretch], prices: Prices, budget: Budget, most_walked: int | None = None
) -> list[list[Range]]:
    """Choose the ranges of each stretch, to make records and row lists together small.

    The cost of using a row list depends on how many other ranges use it, which is not known before they are chosen. So
    all stretches are first partitioned by average costs: in the first round as if all candidates were chosen, then by
    the choices of the round before. Then each stretch is partitioned once more while all others keep their ranges: a
    list that another stretch uses costs only its record there. Readers walk `most_walked` rows at most for all
    addresses together (None: any number), unless no price that is tried gives that. Raises `BudgetError` when there are
    more candidates, or with a price more ranges, than `budget` allows.
    """
    choice = _Choice(columns, stretches, prices, budget)
    for _ in range(_ROUNDS):
        choice.partition_all()
        if most_walked is not None and choice.walked_count() > most_walked:
            _find_price(choice, most_walked)
            break
    choice.improve()
    for _ in range(_GROWTH_COUNT):
        if most_walked is None or choice.walked_count() <= most_walked:
            break
        choice.partition_all(_GROWTH * (choice.price or _FIRST_PRICE))
        choice.improve()
    return choice.ranges


def _find_price(choice: _Choice, most_walked: int) -> None:
    """Partition all stretches with a price of rows walked at which their number comes near to the most."""
    price = _FIRST_PRICE
    # Without a price, long lists were chosen.
    choice.forget_uses()
    choice.partition_all(price)
    for _ in range(_PRICE_COUNT):
        choice.partition_all(price)
        excess = choice.walked_count() / max(most_walked, 1)
        if _NEAR <= excess <= 1:
            break
        # In most files, rows walked fall about with the square root of the price, and below it more slowly.
        price *= excess * excess * min(excess, 1)


class _Choice:
    """The ranges of all stretches that have been chosen so far, and how many ranges use each list."""

    def __init__(self, columns: Columns, stretches: list[Stretch], prices: Prices, budget: Budget) -> None:
        self.ranges: list[list[Range]] = []
        self._stretches = stretches
        self._candidates = Candidates(columns, stretches, prices, budget)
        self._partitioner = Partitioner(columns, self._candidates, prices)
        self._uses = self._candidates.use_counts
        self._budget = budget

    @property
    def price(self) -> float:
        """The price of a row walked at which the ranges were chosen."""
        return self._partitioner.prices.walk_price

    def forget_uses(self) -> None:
        """Let the next costs of lists be as if all candidates had been chosen."""
        self._uses = self._candidates.use_counts

    def walked_count(self) -> int:
        """Return the rows that readers walk for all addresses of all stretches together."""
        count = self._partitioner.walked_count
        return sum(
            stretch.use_count * count(ranges) for stretch, ranges in zip(self._stretches, self.ranges, strict=True)
        )

    def partition_all(self, price: float = 0.0) -> None:
        """Partition all stretches by the average costs of lists, and count the uses of each anew.

        `price` is that of a row walked.
        """
        partitioner, record_size = self._partitioner, self._partitioner.prices.record_size
        partitioner.prices = partitioner.prices._replace(walk_price=price)
        self._count_trials()
        costs = [
            record_size + size / max(count, 1)
            for size, count in zip(self._candidates.list_sizes, self._uses, strict=True)
        ]
        self.ranges = [partitioner.partition(stretch, costs) for stretch in self._stretches]
        self._uses = [0] * len(costs)
        for stretch, ranges in zip(self._stretches, self.ranges, strict=True):
            for number in _stored_lists(ranges, partitioner):
                self._uses[number] += stretch.use_count

    def _count_trials(self) -> None:
        """Count a partition of all stretches on the budget, if every beginning is tried for every end."""
        if self.price:
            self._budget.spend(self._partitioner.trial_count // _TRIALS_PER_STEP, "ranges at a price of rows walked")

    def improve(self) -> None:
        """Partition each stretch once more, given the row lists that all others use."""
        self._count_trials()
        partitioner, uses = self._partitioner, self._uses
        record_size, sizes = partitioner.prices.record_size, self._candidates.list_sizes
        costs: list[float] = [record_size + (0 if count else size) for size, count in zip(sizes, uses, strict=True)]
        for index, stretch in enumerate(self._stretches):
            ranges = self.ranges[index]
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
                self.ranges[index] = better
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
