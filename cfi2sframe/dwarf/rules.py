# SPDX-License-Identifier: Apache-2.0
"""The DWARF row table (DWARF 5, 6.4.1): the rule of the CFA and rules of registers, a row of them, and the table.

Each class carries its rule's name as a last field: records are tuples, and without it tuples of two classes with equal
fields would be equal.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import Literal, NamedTuple


class RegisterOffset(NamedTuple):
    """CFA = register + offset."""

    register: int
    offset: int
    rule: Literal["register_offset"] = "register_offset"


class CfaExpression(NamedTuple):
    """CFA = the value of a DWARF expression."""

    expression: bytes
    rule: Literal["cfa_expression"] = "cfa_expression"


class NoRule(IntEnum):
    """Register rules that are complete without an operand, and the absence of a rule."""

    UNSPECIFIED = 0
    """The CFI says nothing of the register: the ABI's default holds."""
    UNDEFINED = 1
    SAME_VALUE = 2


class AtCfa(NamedTuple):
    """offset(N): the caller's value is saved at CFA + offset."""

    offset: int
    rule: Literal["offset"] = "offset"


class ValueAtCfa(NamedTuple):
    """val_offset(N): the caller's value is CFA + offset."""

    offset: int
    rule: Literal["val_offset"] = "val_offset"


class InRegister(NamedTuple):
    """register(R): the caller's value is in another register."""

    register: int
    rule: Literal["register"] = "register"


class AtExpression(NamedTuple):
    """expression(E): the caller's value is saved where the expression says; the CFA is on its initial stack."""

    expression: bytes
    rule: Literal["expression"] = "expression"


class IsExpression(NamedTuple):
    """val_expression(E): the caller's value is the expression's; the CFA is on its initial stack."""

    expression: bytes
    rule: Literal["val_expression"] = "val_expression"


CfaRule = RegisterOffset | CfaExpression
RegisterRule = NoRule | AtCfa | ValueAtCfa | InRegister | AtExpression | IsExpression


class RaSigning(IntEnum):
    """Whether the RA carries a pointer authentication code (AArch64)."""

    NONE = 0
    SIGNED = 1
    SIGNED_WITH_PC = 2


class RowState(NamedTuple):
    """A row without its place. `cfa` is None while no rule has been given."""

    cfa: CfaRule | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    signing: RaSigning


class CfiRow(NamedTuple):
    """A row of the table: it holds from `start_delta` (bytes from the function's start) to the next row or the end."""

    start_delta: int
    state: RowState


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
