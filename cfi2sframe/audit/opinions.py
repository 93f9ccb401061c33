# SPDX-License-Identifier: Apache-2.0
"""What the instructions say of a row of the CFI: of its CFA, of the RA, of FP."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import Expression, parse_expression
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.errors import CfiError
from cfi2sframe.instructions.states import CALLER_FP, CFA, NUMBER, RETURN_ADDRESS, plus
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.instructions.effects import Abi
    from cfi2sframe.instructions.states import State, TableWord, Value

_CFA: Final = (CFA, 0)
_RA: Final = (RETURN_ADDRESS, 0)
_CALLER: Final = (CALLER_FP, 0)


class Answer(IntEnum):
    """What the instructions say of a rule, from good to bad."""

    SILENT = 0
    """The rule claims nothing: the caller's value is undefined."""
    AGREES = 1
    UNDECIDED = 2
    """The instructions do not tell."""
    CONTRADICTS = 3


class Opinion(NamedTuple):
    """The answer about one rule, and the value that its place has, where that is known."""

    answer: Answer
    value: Value | None = None


_AGREES: Final = Opinion(Answer.AGREES)
_SILENT: Final = Opinion(Answer.SILENT)
_UNDECIDED: Final = Opinion(Answer.UNDECIDED)

#: What a state says of the CFA, of the RA and of FP.
Opinions = tuple[Opinion, Opinion, Opinion]


def opinions_of(row: RowState, state: State, abi: Abi) -> Opinions:
    """Return what a state says of a row.

    Where the RA is undefined there is no caller, and the CFA has no meaning. A CFA that is not known may be that of
    another frame, as in functions that switch stacks: what is at such a CFA cannot be told.
    """
    if row.ra is NoRule.UNDEFINED or row.cfa is None:
        return _SILENT, _SILENT, _SILENT
    cfa = _cfa(row.cfa, state, abi)
    is_agreed = cfa is _AGREES
    ra = _register(row.ra, _RA, abi.arch.ra_register, state, is_cfa_right=is_agreed)
    return cfa, ra, _register(row.fp, _CALLER, abi.arch.fp_register, state, is_cfa_right=is_agreed)


def _cfa(rule: CfaRule, state: State, abi: Abi) -> Opinion:
    if isinstance(rule, Expression):
        return _compared(_loaded(rule.code, state), _CFA)
    if rule.register is None or rule.deref:
        return _UNDECIDED
    value = state.get(rule.register)
    if value is None and abi.clobbered >> rule.register & 1:
        # Functions that load the registers of another frame have its address in such a register.
        return _UNDECIDED
    if (value is None or value[0] >= 0) and CFA in (
        state[abi.arch.sp_register][0],
        state.get(abi.arch.fp_register, _RA)[0],
    ):
        # SP or FP leads to the CFA, and this register has another value.
        return Opinion(Answer.CONTRADICTS)
    # Sums with other values are not followed, but are no CFA.
    return _compared(plus(value, rule.offset) or value, _CFA)


def _loaded(code: bytes, state: State) -> Value | TableWord | None:
    """Return the value of an expression that is a word of the frame plus a number; None where it is something else."""
    rule, added = _load_and_sum(code)
    base = None if rule is None else state.get(rule.register or 0)
    if rule is None or base is None:
        return None
    return plus(state.get((base[0], base[1] + rule.offset)), added)


@lru_cache(maxsize=64)
def _load_and_sum(code: bytes) -> tuple[Rule | None, int]:
    """Return what an expression loads and what it adds; None where it does anything else."""
    try:
        operations = parse_expression(code, "<")
    except CfiError:
        return None, 0
    if [opcode for opcode, _ in operations[1:]] != [d.DW_OP_deref, d.DW_OP_plus_uconst]:
        return None, 0
    register = operations[0].opcode - d.DW_OP_breg0
    if not 0 <= register < 32:
        return None, 0
    return Rule(register, operations[0].operands[0], deref=True), operations[2].operands[0]


def _register(rule: RegisterRule, wanted: Value, register: int, state: State, *, is_cfa_right: bool) -> Opinion:
    """Return what a state says of the rule of a register, whose value at the entry is `wanted`."""
    if rule is NoRule.UNDEFINED:
        return _SILENT
    place = _place_of(rule, register)
    if place is None or (isinstance(place, tuple) and not is_cfa_right):
        return _UNDECIDED
    value = state.get(place)
    if value is None and is_cfa_right and wanted in state.values():
        # The caller's value is in a place that is known, and this is another one.
        return Opinion(Answer.CONTRADICTS)
    return _compared(value, wanted)


def _place_of(rule: RegisterRule, register: int) -> int | Value | None:
    """Return where a rule says that a register's value is; None where that is not followed, or nowhere."""
    if isinstance(rule, NoRule):
        return None if rule is NoRule.UNDEFINED else register
    if not isinstance(rule, Rule):
        return None
    return rule.register if rule.is_register else (CFA, rule.offset) if rule.is_saved_at_cfa else None


def _compared(value: Value | TableWord | None, wanted: Value) -> Opinion:
    """Return what a known value says of the one that a rule promises."""
    if value == wanted:
        return _AGREES
    if value is None or value[0] >= 0 or value[0] < NUMBER:
        return _UNDECIDED
    return Opinion(Answer.CONTRADICTS, (value[0], value[1]))
