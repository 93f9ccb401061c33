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

#: Rows walked for an address, on average, up to which ranges get a price at once, which saves a partition. Where none
#: was needed, the price that is found is low.
_SHORT_WALK: Final = 5
#: The first price of a row walked that is tried, for a mean of one row; it falls with the square of the mean.
_FIRST_PRICE: Final = 0.04
#: Prices that are tried at most after the first, and how near to what is allowed ends the search: the last step saves
#: some more rows.
_PRICE_COUNT: Final = 3
_NEAR: Final = (0.95, 1.05)
#: At the same price, the next partition walks so many times the rows: with lists that are used instead of all that
#: recur, and as long as lists get fewer uses.
_SETTLING_FIRST: Final = 1.07
_SETTLING: Final = 1.03
#: After that, a price that is still too low grows by this factor, and ever faster, so often at most.
_GROWTH: Final = 1.05
_GROWTH_COUNT: Final = 8
#: Beginnings of ranges that can be tried in a microsecond.
_TRIALS_PER_STEP: Final = 4


def choose_ranges(
    columns: Columns, stretches: list[Stretch], prices: Prices, budget: Budget, most_walked: int
) -> list[list[Range]]:
    """Choose the ranges of each stretch, to make records and row lists together small.

    The cost of using a row list depends on how many other ranges use it, which is not known before they are chosen. So
    all stretches are first partitioned by average costs: in the first round as if all candidates were chosen, in the
    second by the choices of the first. A list that the first round does not use would cost its bytes with each use,
    like a list of its own, so the second does without. Then each stretch is partitioned once more while all others keep
    their ranges: a list that another stretch uses costs only its record there. Readers walk `most_walked` rows at most
    for all addresses together, unless no price that is tried gives that. Raises `BudgetError` when there are more
    candidates, or with a price more ranges, than `budget` allows.
    """
    choice = _Choice(columns, stretches, prices, budget, most_walked)
    if choice.most_mean > _SHORT_WALK:
        choice.partition_all()
        if choice.excess() <= 1:
            choice.drop_unused()
            choice.partition_all()
    if not choice.ranges or choice.excess() > 1:
        _find_price(choice)
    choice.improve()
    _raise_price(choice)
    return choice.ranges


def _find_price(choice: _Choice) -> None:
    """Partition all stretches with a price of rows walked at which their number comes near to the most."""
    price = choice.first_price
    # Without a price, long lists were chosen.
    choice.forget_uses()
    choice.partition_all(price)
    choice.drop_unused()
    excess = _SETTLING_FIRST * choice.excess()
    least, most = _NEAR
    for _ in range(_PRICE_COUNT):
        # In most files, rows walked fall with the third root of the price.
        price *= excess * excess * excess
        choice.partition_all(price)
        excess = choice.excess()
        if least <= excess <= most:
            break
        excess *= _SETTLING


def _raise_price(choice: _Choice) -> None:
    """Improve the ranges at higher prices until no more than the most rows are walked."""
    price, growth = choice.price or choice.first_price, _GROWTH
    for _ in range(_GROWTH_COUNT):
        excess = choice.excess()
        if excess <= 1:
            break
        price *= growth * excess * excess
        growth *= growth
        choice.improve(price)


class _Choice:
    """The ranges of all stretches that have been chosen so far, and how many ranges use each list."""

    def __init__(
        self,
        columns: Columns,
        stretches: list[Stretch],
        prices: Prices,
        budget: Budget,
        most_walked: int,
    ) -> None:
        self.ranges: list[list[Range]] = []
        self._stretches = stretches
        self._candidates = Candidates(columns, stretches, prices, budget)
        self._partitioner = Partitioner(columns, self._candidates, prices)
        self._uses = self._candidates.use_counts
        self._budget = budget
        self._most_walked = most_walked
        code_size = sum(
            use_count * columns.cut_deltas[last_cut] + more_size for _, last_cut, use_count, more_size in stretches
        )
        #: The rows that may be walked for an address on average.
        self.most_mean: Final = most_walked / max(code_size, 1)

    @property
    def price(self) -> float:
        """The price of a row walked at which the ranges were chosen."""
        return self._partitioner.prices.walk_price

    @property
    def first_price(self) -> float:
        """The price of a row walked to try first."""
        return _FIRST_PRICE / max(self.most_mean * self.most_mean, 1)

    def excess(self) -> float:
        """Return how many times the rows that may be walked are."""
        return self._walked_count() / max(self._most_walked, 1)

    def forget_uses(self) -> None:
        """Let the next costs of lists be as if all candidates had been chosen."""
        self._uses = self._candidates.use_counts

    def drop_unused(self) -> None:
        """Choose, from now on, of the lists that are used."""
        self._candidates.drop_unused(self._uses)

    def _walked_count(self) -> int:
        """Return the rows that readers walk for all addresses of all stretches together."""
        count, row_count = self._partitioner.walked_count, self._partitioner.columns.row_count
        walked = 0
        for (_, _, use_count, more_size), ranges in zip(self._stretches, self.ranges, strict=True):
            walked += use_count * count(ranges)
            if more_size:
                walked += more_size * row_count(ranges[-1].first_cut, ranges[-1].last_cut)
        return walked

    def partition_all(self, price: float = 0.0) -> None:
        """Partition all stretches by the average costs of lists, and count the uses of each anew.

        `price` is that of a row walked.
        """
        partitioner, record_size = self._partitioner, self._partitioner.prices.record_size
        self._set_price(price)
        costs = [
            record_size + size / max(count, 1)
            for size, count in zip(self._candidates.list_sizes, self._uses, strict=True)
        ]
        self.ranges = [partitioner.partition(stretch, costs) for stretch in self._stretches]
        self._uses = [0] * len(costs)
        for stretch, ranges in zip(self._stretches, self.ranges, strict=True):
            for number in _stored_lists(ranges, partitioner):
                self._uses[number] += stretch.use_count

    def _set_price(self, price: float) -> None:
        """Set the price of a row walked for a partition of all stretches; count what it takes on the budget.

        That is, if every beginning is tried for every end.
        """
        partitioner = self._partitioner
        partitioner.prices = partitioner.prices._replace(walk_price=price)
        if price:
            self._budget.spend(partitioner.trial_count // _TRIALS_PER_STEP, "ranges at a price of rows walked")

    def improve(self, price: float | None = None) -> None:
        """Partition each stretch once more, given the row lists that all others use.

        `price` is that of a row walked; None: the same as before.
        """
        self._set_price(self.price if price is None else price)
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
        for end, number in partitioner.candidates.ranges_at(first):
            if end <= last and columns.start_size(first, end) == start_size:
                yield number
