# SPDX-License-Identifier: Apache-2.0
"""DWARF's rules under DWARF's names (DWARF 5, 6.4.1), as the package's rows have them."""

from bisect import bisect_right
from typing import NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import RowState, UnwindTable


def register_offset(register: int, offset: int) -> Rule:
    """CFA = register + offset."""
    return Rule(register, offset, deref=False)


def loaded(register: int, offset: int) -> Rule:
    """What is saved at register + offset: SFrame's, and expressions'."""
    return Rule(register, offset, deref=True)


def at_cfa(offset: int) -> Rule:
    """offset(N): saved at CFA + N."""
    return Rule(None, offset, deref=True)


def value_at_cfa(offset: int) -> Rule:
    """val_offset(N): the value CFA + N."""
    return Rule(None, offset, deref=False)


def in_register(register: int) -> Rule:
    """register(R): in another register."""
    return Rule(register, 0, deref=False)


def at_expression(code: bytes) -> Expression:
    """expression(E): saved where the expression says."""
    return Expression(code, deref=True)


def is_expression(code: bytes) -> Expression:
    """val_expression(E), and the CFA's expression: the value of the expression."""
    return Expression(code, deref=False)


class CfiRow(NamedTuple):
    """A row of the table: in force from `start_delta` (bytes from the function's start) to the next row or the end."""

    start_delta: int
    state: RowState


def rows_of(table: UnwindTable) -> tuple[CfiRow, ...]:
    """Return the rows of a table as records."""
    return tuple(map(CfiRow, table.starts, table.states))


def state_at(table: UnwindTable, delta: int) -> RowState:
    """Return the row in force at a distance from the function's start."""
    return table.states[bisect_right(table.starts, delta) - 1]
