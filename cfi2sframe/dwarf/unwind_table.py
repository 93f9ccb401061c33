# SPDX-License-Identifier: Apache-2.0
"""The table that a program makes (DWARF 5, 6.4.1): rows by their starts."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.rules import CfiRow

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import RowState


class UnwindTable(NamedTuple):
    """The rows of a program as columns: `states[N]` holds from `starts[N]` (bytes from the function's start) on.

    Starts ascend from 0, and no state equals the one before it. The table knows nothing of the function's size.
    `depends_on_location`: the same instructions at another address may give other rows.
    """

    starts: tuple[int, ...]
    states: tuple[RowState, ...]
    depends_on_location: bool = False

    @property
    def rows(self) -> tuple[CfiRow, ...]:
        """The rows as records."""
        return tuple(map(CfiRow, self.starts, self.states))

    def before(self, end_delta: int) -> UnwindTable:
        """Return the rows that start before `end_delta`; the first row always stays."""
        count = bisect_left(self.starts, max(end_delta, 1))
        return self._replace(starts=self.starts[:count], states=self.states[:count])


class TableBuilder:
    """Collects rows in the order of their starts: a later row replaces one of no length, equal neighbours are one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._states: list[RowState] = []

    def add(self, start: int, state: RowState) -> None:
        """Add a row, whose start is not before the last one's."""
        if self._starts and self._starts[-1] == start:
            del self._starts[-1], self._states[-1]
        if not self._states or self._states[-1] != state:
            self._starts.append(start)
            self._states.append(state)

    def table(self, *, depends_on_location: bool = False) -> UnwindTable:
        """Return the table of all rows added."""
        return UnwindTable(tuple(self._starts), tuple(self._states), depends_on_location)
