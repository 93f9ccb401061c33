# SPDX-License-Identifier: Apache-2.0
"""The row lists that more than one range could use, and how many ranges could."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import accumulate, compress, count, repeat
from operator import eq, le
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
#: The number of a list that is left out, among those that are not.
_LEFT_OUT: Final = 0xFFFFFFFF
_CANDIDATES: Final = "the ranges whose rows recur"


class _Recurring(NamedTuple):
    """The ranges of one span whose rows recur: their first cuts, and the numbers of their lists."""

    span: int
    cuts: array[int]
    lists: array[int]


class Candidates:
    """The row lists that more than one range could use, by number, and those ranges.

    The ranges are in two columns, `range_ends` (last cuts) and `range_lists` (numbers of lists): those that begin at
    cut C are `[firsts[C], firsts[C + 1])`, the shortest first. `list_sizes` are the bytes of the lists with their
    attributes, `use_counts` the numbers of ranges that could use them. Unless `keeps_all`, lists are left out that can
    be made longer without losing a use: they would hardly be chosen. Raises `BudgetError` when there are more
    candidates than `budget` allows.
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
        self.firsts = array("I")
        self.range_ends = array("I")
        self.range_lists = array("I")
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

    def ranges_at(self, cut: int) -> list[tuple[int, int]]:
        """Return the ranges that begin at a cut, the shortest first, as (last cut, list number)."""
        these = slice(self.firsts[cut], self.firsts[cut + 1])
        return list(zip(self.range_ends[these], self.range_lists[these], strict=True))

    def drop_unused(self, uses: list[int]) -> None:
        """Drop the ranges of lists that no range uses, by list number. The lists keep their numbers."""
        is_used = [uses[number] > 0 for number in self.range_lists]
        self.range_ends = array("I", compress(self.range_ends, is_used))
        self.range_lists = array("I", compress(self.range_lists, is_used))
        places = array("I", accumulate(is_used, initial=0))
        self.firsts = array("I", map(places.__getitem__, self.firsts))

    def _find(self, prices: Prices, budget: Budget, max_span: int) -> list[_Recurring]:
        """Find all lists that recur; number them, and count their uses."""
        columns = self._columns
        last_cuts, reach = columns.last_cuts, _reach(columns, prices.max_rows)
        segments = columns.segments()
        base = segments.limit
        cuts = [cut for cut, last in enumerate(last_cuts) if cut != last]
        prefixes = [0] * len(cuts)
        shorter: list[int] = []
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
            numbers, counts = _recurring(keys, len(self.list_sizes))
            lists = list(map(numbers.get, keys, repeat(-1)))
            recurs = list(map(le, repeat(0), lists))
            cuts = list(compress(cuts, recurs))
            lists = list(compress(lists, recurs))
            if not cuts:
                break
            self._add_lists(cuts, lists, counts, span, prices)
            if span > 1:
                self._extend(list(compress(shorter, recurs)), lists)
            all_found.append(_Recurring(span, array("I", cuts), array("I", lists)))
            # The beginnings that recur, with one more cut, within their stretch and in few enough rows.
            prefixes = list(compress(prefixes, recurs))
            keys = [prefix * base + whole[cut + step] for prefix, cut in zip(prefixes, cuts, strict=True)]
            numbers, _ = _recurring(keys, 0)
            prefixes = list(map(numbers.get, keys, repeat(-1)))
            goes_on = [prefix >= 0 and cut + span < reach[cut] for prefix, cut in zip(prefixes, cuts, strict=True)]
            cuts = list(compress(cuts, goes_on))
            shorter = list(compress(lists, goes_on))
            prefixes = list(compress(prefixes, goes_on))
        return all_found

    def _add_lists(self, cuts: list[int], lists: list[int], counts: list[int], span: int, prices: Prices) -> None:
        """Add the sizes and uses of the lists of ranges that span so many cuts, `counts` by list."""
        # All ranges of a list have the same size, so any of them will do.
        places = dict(zip(lists, cuts, strict=True))
        rows_size, attribute_size, first = self._columns.rows_size, prices.attribute_size, len(self.list_sizes)
        cuts_of_lists = map(places.__getitem__, range(first, first + len(counts)))
        self.list_sizes += [attribute_size + rows_size(cut, cut + span) for cut in cuts_of_lists]
        self.use_counts += counts
        if self._more_uses:
            uses, more_uses = self.use_counts, self._more_uses
            for cut, number in zip(cuts, lists, strict=True):
                if cut in more_uses:
                    uses[number] += more_uses[cut]

    def _extend(self, shorter: list[int], lists: list[int]) -> None:
        """Note the lists that lists of one more cut have all uses of, by range."""
        uses = self.use_counts
        is_same = map(eq, map(uses.__getitem__, shorter), map(uses.__getitem__, lists))
        self._extensible.update(compress(shorter, is_same))

    def _keep(self, all_found: list[_Recurring]) -> None:
        """Drop the lists that can be made longer, renumber the others, and fill the columns of ranges."""
        kept = [number for number in range(len(self.list_sizes)) if number not in self._extensible]
        numbers = array("I", [_LEFT_OUT]) * len(self.list_sizes)
        for number, old in enumerate(kept):
            numbers[old] = number
        self.list_sizes = [self.list_sizes[number] for number in kept]
        self.use_counts = [self.use_counts[number] for number in kept]
        # One span after the other, so that the shortest of a cut come first.
        counts = [0] * len(self._columns.cut_rows)
        for number, found in enumerate(all_found):
            lists = array("I", map(numbers.__getitem__, found.lists))
            is_kept = [each != _LEFT_OUT for each in lists]
            cuts = array("I", compress(found.cuts, is_kept))
            all_found[number] = _Recurring(found.span, cuts, array("I", compress(lists, is_kept)))
            for cut in cuts:
                counts[cut] += 1
        self.firsts = array("I", accumulate(counts, initial=0))
        self.range_ends = array("I", bytes(self.firsts.itemsize * self.firsts[-1]))
        self.range_lists = array("I", self.range_ends)
        places, range_ends, range_lists = self.firsts.tolist(), self.range_ends, self.range_lists
        for span, cuts, lists in all_found:
            for cut, number in zip(cuts, lists, strict=True):
                place = places[cut]
                range_ends[place] = cut + span
                range_lists[place] = number
                places[cut] = place + 1


def _recurring(keys: list[int], first: int) -> tuple[dict[int, int], list[int]]:
    """Return numbers, from the first on, of the keys that are there more than once; and how often each is there."""
    counts = {key: use_count for key, use_count in Counter(keys).items() if use_count > 1}
    return dict(zip(counts, count(first), strict=False)), list(counts.values())


def _reach(columns: Columns, max_rows: int) -> array[int]:
    """Return the last cut where a range may end that begins at each cut: in its stretch, and with few enough rows."""
    rows, ends, last_cuts = columns.cut_rows, columns.cut_ends, columns.last_cuts
    reach = array("I")
    last = 0
    for cut, row in enumerate(rows):
        stretch_end = last_cuts[cut]
        last = max(last, cut)
        while last < stretch_end and ends[last + 1] - row <= max_rows:
            last += 1
        reach.append(last)
    return reach
