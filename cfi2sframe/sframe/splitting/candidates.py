# SPDX-License-Identifier: Apache-2.0
"""Which ranges of code have rows that recur elsewhere, and how often."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.splitting.stretches import ROW_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.splitting.stretches import Columns, Stretch

#: The most cuts that a range which recurs may reach over; few are longer.
_MAX_REACH: Final = 24
#: Bytes of memory, and work, that a candidate takes until the ranges are chosen.
_CANDIDATE_SIZE: Final = 200
_CANDIDATE_STEPS: Final = 3
#: Bytes of a key besides its rows; bytes of keys that are made and counted in a microsecond.
_KEY_SIZE: Final = 40
_KEY_BYTES_PER_STEP: Final = 256
_CANDIDATES: Final = "the ranges that recur"


class Recurring:
    """The row lists that several ranges have, by number.

    `options[C]`: (last cut, list) of the ranges that begin at cut C; `sizes`: a list's bytes with its attribute;
    `use_counts`: how many ranges have it. Raises `BudgetError` when there are more candidates than `budget` allows.
    """

    def __init__(
        self,
        columns: Columns,
        stretches: Sequence[Stretch],
        attribute_size: int,
        budget: Budget,
        max_reach: int = _MAX_REACH,
    ) -> None:
        self.options: list[list[tuple[int, int]]] = [[] for _ in columns.cut_rows]
        self.sizes: list[int] = []
        self.use_counts: list[int] = []
        #: Cuts of stretches that the section has several times, and how many times more.
        self.more_uses = {
            cut: stretch.use_count - 1
            for stretch in stretches
            if stretch.use_count > 1
            for cut in range(stretch.first_cut, stretch.last_cut)
        }
        last_cuts = columns.last_cuts
        plain = [cut for cut, last in enumerate(last_cuts) if cut != last and cut not in columns.inner_cuts]
        inner = [cut for cut in sorted(columns.inner_cuts) if cut != last_cuts[cut]]
        # What does not recur does not recur with more behind it either.
        for reach in range(1, max_reach + 1):
            plain = [cut for cut in plain if cut + reach <= last_cuts[cut]]
            inner = [cut for cut in inner if cut + reach <= last_cuts[cut]]
            if not plain and not inner:
                break
            cuts = plain + inner
            rows = sum([columns.cut_ends[cut + reach] - columns.cut_rows[cut] for cut in cuts])
            keys_size = ROW_SIZE * rows + _KEY_SIZE * len(cuts)
            budget.spend(len(cuts) + keys_size // _KEY_BYTES_PER_STEP, _CANDIDATES)
            budget.hold(keys_size, _CANDIDATES)
            keys = columns.keys(plain, [cut + reach for cut in plain])
            keys += [columns.key(cut, cut + reach) for cut in inner]
            found = self._lists_of(cuts, keys)
            budget.spend(_CANDIDATE_STEPS * len(found), _CANDIDATES)
            budget.hold(_CANDIDATE_SIZE * len(found), _CANDIDATES)
            budget.release(keys_size)
            # Any range that has a list tells its size.
            for number, cut in {number: cut for cut, number in found}.items():
                self.sizes[number] = attribute_size + columns.rows_size(cut, cut + reach)
            for cut, number in found:
                self.options[cut].append((cut + reach, number))
            plain = [cut for cut, _ in found if cut not in columns.inner_cuts]
            inner = [cut for cut, _ in found if cut in columns.inner_cuts]

    def _lists_of(self, cuts: list[int], keys: list[bytes]) -> list[tuple[int, int]]:
        """Number the lists that recur; return (cut, list) of the ranges that have one."""
        shared = [(key, count) for key, count in Counter(keys).items() if count > 1]
        lists = {key: number for number, (key, _) in enumerate(shared, len(self.sizes))}
        self.use_counts += [count for _, count in shared]
        self.sizes += [0] * len(shared)
        found = [(cut, lists[key]) for cut, key in zip(cuts, keys, strict=True) if key in lists]
        more_uses = self.more_uses
        for cut, number in found:
            if cut in more_uses:
                self.use_counts[number] += more_uses[cut]
        return found
