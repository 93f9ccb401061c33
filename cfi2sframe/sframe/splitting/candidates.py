# SPDX-License-Identifier: Apache-2.0
"""The row lists that more than one range could use, and how many ranges could."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.splitting.columns import ROW_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.splitting.columns import Columns
    from cfi2sframe.sframe.splitting.stretches import Stretch

#: The most cuts that a candidate may span; few row lists that recur are longer.
_MAX_SPAN: Final = 24
#: Bytes of memory and microseconds of work for a candidate, in this module and in `partition`.
_CANDIDATE_SIZE: Final = 200
_CANDIDATE_STEPS: Final = 3
#: Bytes of memory of a key besides its rows.
_KEY_SIZE: Final = 40
#: Bytes of keys that are made and counted in a microsecond.
_KEY_BYTES_PER_STEP: Final = 256
_CANDIDATES: Final = "the ranges whose rows recur"


class Candidates:
    """The row lists that more than one range could use, by number, and those ranges.

    `ranges_at[C]` are the ranges that begin at cut C, the shortest first, as (last cut, list number); `list_sizes` are
    the bytes of the lists with their attributes, `use_counts` the numbers of ranges that could use them. Raises
    `BudgetError` when there are more candidates than `budget` allows.
    """

    def __init__(
        self,
        columns: Columns,
        stretches: Sequence[Stretch],
        attribute_size: int,
        budget: Budget,
        max_span: int = _MAX_SPAN,
    ) -> None:
        self.ranges_at: list[list[tuple[int, int]]] = [[] for _ in columns.cut_rows]
        self.list_sizes: list[int] = []
        self.use_counts: list[int] = []
        #: By cut, how often the section repeats the cut's stretch.
        self._more_uses = {
            cut: stretch.use_count - 1
            for stretch in stretches
            if stretch.use_count > 1
            for cut in range(stretch.first_cut, stretch.last_cut)
        }
        last_cuts = columns.last_cuts
        plain = [cut for cut, last in enumerate(last_cuts) if cut != last and cut not in columns.inner_cuts]
        inner = [cut for cut in sorted(columns.inner_cuts) if cut != last_cuts[cut]]
        # A range can recur only if the range with the same beginning that ends one cut earlier recurs.
        for span in range(1, max_span + 1):
            plain = [cut for cut in plain if cut + span <= last_cuts[cut]]
            inner = [cut for cut in inner if cut + span <= last_cuts[cut]]
            if not plain and not inner:
                break
            cuts = plain + inner
            row_count = sum([columns.cut_ends[cut + span] - columns.cut_rows[cut] for cut in cuts])
            keys_size = ROW_SIZE * row_count + _KEY_SIZE * len(cuts)
            budget.spend(len(cuts) + keys_size // _KEY_BYTES_PER_STEP, _CANDIDATES)
            budget.hold(keys_size, _CANDIDATES)
            keys = columns.keys(plain, [cut + span for cut in plain])
            keys += [columns.key(cut, cut + span) for cut in inner]
            found = self._number_lists(cuts, keys)
            budget.spend(_CANDIDATE_STEPS * len(found), _CANDIDATES)
            budget.hold(_CANDIDATE_SIZE * len(found), _CANDIDATES)
            budget.release(keys_size)
            # All ranges of a list have the same size, so the last one found will do.
            for number, cut in {number: cut for cut, number in found}.items():
                self.list_sizes[number] = attribute_size + columns.rows_size(cut, cut + span)
            for cut, number in found:
                self.ranges_at[cut].append((cut + span, number))
            plain = [cut for cut, _ in found if cut not in columns.inner_cuts]
            inner = [cut for cut, _ in found if cut in columns.inner_cuts]

    def _number_lists(self, cuts: list[int], keys: list[bytes]) -> list[tuple[int, int]]:
        """Number the lists that recur; return (cut, list number) for the ranges that have one."""
        recurring = [(key, count) for key, count in Counter(keys).items() if count > 1]
        numbers = {key: number for number, (key, _) in enumerate(recurring, len(self.list_sizes))}
        self.use_counts += [count for _, count in recurring]
        self.list_sizes += [0] * len(recurring)
        found = [(cut, numbers[key]) for cut, key in zip(cuts, keys, strict=True) if key in numbers]
        for cut, number in found:
            self.use_counts[number] += self._more_uses.get(cut, 0)
        return found
