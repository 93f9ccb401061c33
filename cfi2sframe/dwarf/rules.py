# SPDX-License-Identifier: Apache-2.0
"""The DWARF row table (DWARF 5, 6.4.1): rules of the CFA and of registers, rows of these rules, and tables of rows.

Offsets count bytes. Each class of rules has the rule's name as its last field: records are tuples, and rules of two
classes with equal fields would be equal without it.
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
    """No instruction has given the register a rule: the ABI's default holds."""
    UNDEFINED = 1
    """The caller's value is lost."""
    SAME_VALUE = 2
    """The caller's value is still in the register."""


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
    """expression(E): the caller's value is saved at the expression's value; the CFA is on its initial stack."""

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
    """The rules of a row, without its start. `cfa` is None before any instruction has given the CFA a rule."""

    cfa: CfaRule | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    signing: RaSigning


class CfiRow(NamedTuple):
    """A row of the table: in force from `start_delta` (bytes from the function's start) to the next row or the end."""

    start_delta: int
    state: RowState


class UnwindTable(NamedTuple):
    """The rows of a program as columns: `states[N]` is in force from `starts[N]` (bytes from the function's start) on.

    Starts ascend from 0, and no state equals the one before it. Rows may start past the end of a function.
    `depends_on_location`: the same instructions at another address may give other rows (DW_CFA_set_loc).
    """

    starts: tuple[int, ...]
    states: tuple[RowState, ...]
    depends_on_location: bool = False

    @property
    def rows(self) -> tuple[CfiRow, ...]:
        """The rows as records."""
        return tuple(map(CfiRow, self.starts, self.states))

    def before(self, end_delta: int) -> UnwindTable:
        """Return the rows that start before `end_delta`, and the first row in any case."""
        count = bisect_left(self.starts, max(end_delta, 1))
        return self._replace(starts=self.starts[:count], states=self.states[:count])


class TableBuilder:
    """Collects rows in the order of their starts. Rows without length are dropped, and equal neighbours merged."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._states: list[RowState] = []

    def add(self, start: int, state: RowState) -> None:
        """Add a row. It replaces the last one if that has the same start, and may not start before it."""
        if self._starts and self._starts[-1] == start:
            del self._starts[-1], self._states[-1]
        if not self._states or self._states[-1] != state:
            self._starts.append(start)
            self._states.append(state)

    def table(self, *, depends_on_location: bool = False) -> UnwindTable:
        """Return the table of all rows added."""
        return UnwindTable(tuple(self._starts), tuple(self._states), depends_on_location)
