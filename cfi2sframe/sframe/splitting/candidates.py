# SPDX-License-Identifier: Apache-2.0
"""The row lists that more than one range could use, and how many ranges could."""

from __future__ import annotations

from collections import Counter
from itertools import compress, count
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.splitting.columns import Columns
    from cfi2sframe.sframe.splitting.prices import Prices
    from cfi2sframe.sframe.splitting.stretches import Stretch

#: The most cuts that a candidate may span; few row lists that recur are longer.
_MAX_SPAN: Final = 24
#: Bytes of memory for a range that is looked at, which counts as a microsecond of work.
_RANGE_SIZE: Final = 100
_CANDIDATES: Final = "the ranges whose rows recur"


class _Recurring(NamedTuple):
    """The ranges of one span whose rows recur: their first cuts, and the numbers of their lists."""

    span: int
    cuts: list[int]
    lists: list[int]


class Candidates:
    """The row lists that more than one range could use, by number, and those ranges.

    `ranges_at[C]` are the ranges that begin at cut C, the shortest first, as (last cut, list number); `list_sizes` are
    the bytes of the lists with their attributes, `use_counts` the numbers of ranges that could use them. Unless
    `keeps_all`, lists are left out that can be made longer without losing a use: they would hardly be chosen. Raises
    `BudgetError` when there are more candidates than `budget` allows.
    """

    def __init__(
        self,
        columns: Columns,
        stretches: Sequence[Stretch],
        prices: Prices,
        budget: Budget,
        *,
        max_span: int = _MAX_SPAN,
        keeps_all: bool = False,
    ) -> None:
        self.list_sizes: list[int] = []
        self.use_counts: list[int] = []
        self.ranges_at: list[list[tuple[int, int]]] = [[] for _ in columns.cut_rows]
        self._columns = columns
        #: By cut, how often the section repeats the cut's stretch.
        self._more_uses = {
            cut: stretch.use_count - 1
            for stretch in stretches
            if stretch.use_count > 1
            for cut in range(stretch.first_cut, stretch.last_cut)
        }
        #: The lists that one more cut makes longer in all their ranges.
        self._extensible: set[int] = set()
        found = self._find(prices, budget, max_span)
        if keeps_all:
            self._extensible.clear()
        self._keep(found)

    def _find(self, prices: Prices, budget: Budget, max_span: int) -> list[_Recurring]:
        """Find all lists that recur; number them, and count their uses."""
        columns = self._columns
        rows, ends, last_cuts = columns.cut_rows, columns.cut_ends, columns.last_cuts
        segments = columns.segments()
        base = segments.limit
        cuts = [cut for cut, last in enumerate(last_cuts) if cut != last]
        prefixes = [0] * len(cuts)
        shorter = [-1] * len(cuts)
        all_found: list[_Recurring] = []
        # A range can recur only if the range with the same beginning that ends one cut earlier recurs.
        for span in range(1, max_span + 1):
            budget.spend(len(cuts), _CANDIDATES)
            budget.hold(_RANGE_SIZE * len(cuts), _CANDIDATES)
            whole, closing = segments.whole, segments.closing
            if span == 1:
                whole, closing = segments.first_whole, segments.first_closing
            step = span - 1
            # A range is known by the number of all its segments but the last, and by the last one.
            keys = [prefix * base + closing[cut + step] for prefix, cut in zip(prefixes, cuts, strict=True)]
            lists = self._number_lists(cuts, keys, shorter, span, prices)
            recurs = [number >= 0 for number in lists]
            kept = list(compress(cuts, recurs))
            shorter = list(compress(lists, recurs))
            if not kept:
                break
            all_found.append(_Recurring(span, kept, shorter))
            keys = [
                prefix * base + whole[cut + step] for prefix, cut in zip(compress(prefixes, recurs), kept, strict=True)
            ]
            # The beginnings that recur, with one more cut, within their stretch and in few enough rows.
            numbers = {key: number for number, key in enumerate(_recurring(keys))}
            goes_on = [
                key in numbers and cut + span < last_cuts[cut] and ends[cut + span + 1] - rows[cut] <= prices.max_rows
                for key, cut in zip(keys, kept, strict=True)
            ]
            cuts = list(compress(kept, goes_on))
            shorter = list(compress(shorter, goes_on))
            prefixes = [numbers[key] for key in compress(keys, goes_on)]
        return all_found

    def _number_lists(
        self, cuts: list[int], keys: list[int], shorter: list[int], span: int, prices: Prices
    ) -> list[int]:
        """Return the numbers of ranges' lists, -1 for lists that do not recur."""
        counts = Counter(keys)
        recurring = [key for key, use_count in counts.items() if use_count > 1]
        numbers = {key: number for number, key in enumerate(recurring, len(self.list_sizes))}
        self.use_counts += [counts[key] for key in recurring]
        # All ranges of a list have the same size, so any of them will do.
        places = dict(zip(keys, cuts, strict=True))
        rows_size = self._columns.rows_size
        self.list_sizes += [
            prices.attribute_size + rows_size(cut, cut + span) for cut in map(places.__getitem__, recurring)
        ]
        lists = [numbers.get(key, -1) for key in keys]
        if self._more_uses:
            for cut, number in zip(cuts, lists, strict=True):
                if number >= 0:
                    self.use_counts[number] += self._more_uses.get(cut, 0)
        uses = self.use_counts
        self._extensible.update(
            [
                before
                for before, number in zip(shorter, lists, strict=True)
                if number >= 0 and before >= 0 and uses[before] == uses[number]
            ]
        )
        return lists

    def _keep(self, all_found: list[_Recurring]) -> None:
        """Drop the lists that can be made longer, renumber the others, and fill `ranges_at`."""
        kept = [number for number in range(len(self.list_sizes)) if number not in self._extensible]
        numbers = dict(zip(kept, count(), strict=False))
        self.list_sizes = [self.list_sizes[number] for number in kept]
        self.use_counts = [self.use_counts[number] for number in kept]
        ranges_at = self.ranges_at
        for span, cuts, lists in all_found:
            for cut, old in zip(cuts, lists, strict=True):
                number = numbers.get(old)
                if number is not None:
                    ranges_at[cut].append((cut + span, number))


def _recurring(keys: list[int]) -> list[int]:
    return [key for key, use_count in Counter(keys).items() if use_count > 1]
