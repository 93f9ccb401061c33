# SPDX-License-Identifier: Apache-2.0
"""What the instructions say of a row of the CFI: of its CFA, of the RA, of FP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.audit.evaluation import plus, value_of
from cfi2sframe.audit.records import Answer
from cfi2sframe.code.values import CALLER_FP, CFA, LIMITED, LOADED, RETURN_ADDRESS, SET_AT, Value
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.code.effects import CodeArch
    from cfi2sframe.code.values import State
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState

_CFA: Final = Value(CFA, 0)
_RA: Final = Value(RETURN_ADDRESS, 0)
_FP: Final = Value(CALLER_FP, 0)


class Opinion(NamedTuple):
    """The answer about one rule, and the value that its place has, where that is known."""

    answer: Answer
    value: Value | None = None


_AGREES: Final = Opinion(Answer.AGREES)
_SILENT: Final = Opinion(Answer.SILENT)
_UNDECIDED: Final = Opinion(Answer.UNDECIDED)
_NOTHING_CLAIMED: Final = (_SILENT, _SILENT, _SILENT)

#: What a state says of the CFA, of the RA and of FP.
Opinions = tuple[Opinion, Opinion, Opinion]


class Judge:
    """Compares states of the analysis with rows, for one ABI."""

    def __init__(self, arch: Arch, code_arch: CodeArch) -> None:
        self.arch = arch
        self.code_arch = code_arch

    def opinions(self, row: RowState, state: State, vaddr: int, *, has_fp: bool = True) -> Opinions:
        """Return what the state at an address says of a row; `has_fp`: a row without a rule for FP says it is kept.

        Where the RA is undefined there is no caller, and the CFA has no meaning. A CFA that is not known may be that of
        another frame, as in functions that switch stacks: what is at such a CFA cannot be told.
        """
        if row.ra is NoRule.UNDEFINED or row.cfa is None:
            return _NOTHING_CLAIMED
        cfa = self._cfa(row.cfa, state, vaddr)
        is_agreed = cfa.answer is Answer.AGREES
        ra = self._register(row.ra, _RA, self.code_arch.ra_register, state, vaddr, is_cfa_right=is_agreed)
        if row.fp is NoRule.UNSPECIFIED and not has_fp:
            return cfa, ra, _SILENT
        fp = self._register(row.fp, _FP, self.code_arch.fp_register, state, vaddr, is_cfa_right=is_agreed)
        return cfa, ra, fp

    def _cfa(self, rule: CfaRule, state: State, vaddr: int) -> Opinion:
        if isinstance(rule, Expression):
            return _compared(value_of(rule.code, state, vaddr, self.arch, starts_with_cfa=False), _CFA)
        register = None if rule.register is None else state.registers.get(rule.register)
        return _compared(plus(register, rule.offset), _CFA)

    def _register(
        self, rule: RegisterRule, wanted: Value, register: int, state: State, vaddr: int, *, is_cfa_right: bool
    ) -> Opinion:
        """Return what a state says of the rule of a register, whose value at the entry is `wanted`."""
        if rule is NoRule.UNDEFINED:
            return _SILENT
        if isinstance(rule, NoRule):
            value = state.registers.get(register)
        elif isinstance(rule, Rule) and rule.register is not None:
            value = state.registers.get(rule.register)
        elif not is_cfa_right:
            return _UNDECIDED
        else:
            value = self._value(rule, state, vaddr)
            if rule.deref:
                if value is None:
                    return _UNDECIDED
                # A slot that handlers of signals may overwrite, because SP is above it, is not in the state any more.
                value = state.slots.get(value)
        is_computed = isinstance(rule, Expression) and not rule.deref
        if value is None and is_cfa_right and not is_computed and _is_anywhere(wanted, state):
            # The caller's value is in a place that is known, and this is another one.
            return Opinion(Answer.CONTRADICTS)
        return _compared(value, wanted)

    def _value(self, rule: Rule | Expression, state: State, vaddr: int) -> Value | None:
        """Return what a rule computes, before its load."""
        if isinstance(rule, Rule):
            return Value(CFA, rule.offset)
        return value_of(rule.code, state, vaddr, self.arch, starts_with_cfa=True)


def _is_anywhere(wanted: Value, state: State) -> bool:
    return wanted in state.registers.values() or wanted in state.slots.values()


def _compared(value: Value | None, wanted: Value) -> Opinion:
    """Return what a known value says of the one that a rule promises."""
    if value == wanted:
        return _AGREES
    if value is None or value.base >= SET_AT or value.base in (LOADED, LIMITED):
        return _UNDECIDED
    return Opinion(Answer.CONTRADICTS, value)
