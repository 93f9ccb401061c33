# SPDX-License-Identifier: Apache-2.0
"""What looking up an address in a section costs a reader: steps in the function table, then rows of the function.

Readers search the function table by halves. Rows differ in size, so they walk the rows of the function that they find
one after the other: the row number N, counted from 0, costs N + 1 rows.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.intern import IdentityMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.sframe.model import FunctionBody


class LookupCost(NamedTuple):
    """What it costs to look each byte of code up once.

    `code_size` counts the bytes that have a row, `walked_count` the rows that readers walk for all of them, `max_rows`
    those for the costliest. `function_count` counts the records of the function table, `search_steps` how many of them
    a search by halves compares with the address at most: ceil(log2(function_count + 1)).
    """

    code_size: int = 0
    walked_count: int = 0
    max_rows: int = 0
    function_count: int = 0
    search_steps: int = 0

    @property
    def mean_rows(self) -> float:
        """The rows walked for a look-up, on average over the bytes of code; 0 without code."""
        return self.walked_count / self.code_size if self.code_size else 0.0


def lookup_cost(sizes: Sequence[int], bodies: Sequence[FunctionBody]) -> LookupCost:
    """Return the cost of a section from two columns of its functions (see `model.Section`); sizes are in bytes."""
    code_size = walked_count = max_rows = 0
    profiles: IdentityMap[FunctionBody, _Profile] = IdentityMap(_Profile)
    for size, body in zip(sizes, bodies, strict=True):
        covered, walked, most = profiles[body].walk(size)
        code_size += covered
        walked_count += walked
        max_rows = max(max_rows, most)
    return LookupCost(code_size, walked_count, max_rows, len(bodies), len(bodies).bit_length())


class _Profile:
    """The rows of a body, ready for functions of any size."""

    def __init__(self, body: FunctionBody) -> None:
        self.starts = body.starts
        self.start_sums = list(accumulate(body.starts, initial=0))
        self.repeat_size = body.repeat_size

    def walk(self, size: int) -> tuple[int, int, int]:
        """Return the bytes with a row in a function of `size` bytes, the rows walked for them, and the most for one."""
        if not self.repeat_size:
            return self._walk_once(size)
        block_count, rest = divmod(size, self.repeat_size)
        covered, walked, most = self._walk_once(self.repeat_size if block_count else 0)
        last_covered, last_walked, last_most = self._walk_once(rest)
        return covered * block_count + last_covered, walked * block_count + last_walked, max(most, last_most)

    def _walk_once(self, size: int) -> tuple[int, int, int]:
        """Do the same for a range over which the rows do not repeat."""
        count = bisect_left(self.starts, size)
        if not count:
            return 0, 0, 0
        # A row costs one for each byte from its start to the end.
        return size - self.starts[0], count * size - self.start_sums[count], count
