# SPDX-License-Identifier: Apache-2.0
"""What a row of the DWARF row table says (DWARF 5, 6.4.1): the rule of the CFA, and rules of registers.

Each class carries its rule's name as a last field: records are tuples, and without it tuples of two classes with equal
fields would be equal.
"""

from __future__ import annotations

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
