# SPDX-License-Identifier: Apache-2.0
"""The answers of instructions to a row of the CFI: about its CFA, RA and FP, and about the RA's signature."""

from enum import IntEnum
from functools import lru_cache
from typing import Final

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.expression import Expression, Operation, parse_expression
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.errors import CfiError
from cfi2sframe.instructions.effects import RA_SIGN_STATE, Abi
from cfi2sframe.instructions.states import CALLER_FP, CFA, NUMBER, RETURN_ADDRESS, State, TableWord, Value, plus

_REGISTERS: Final = range(d.DW_OP_breg0, d.DW_OP_breg31 + 1)
_CFA: Final = (CFA, 0)


class Answer(IntEnum):
    """An answer of the instructions to a rule, from good to bad."""

    SILENT = 0
    """The rule claims nothing: it leaves the caller's value undefined."""
    AGREES = 1
    UNDECIDED = 2
    """The instructions do not decide."""
    CONTRADICTS = 3


#: The answers of a state about the CFA, the RA, FP, and the RA's signature.
Answers = tuple[Answer, Answer, Answer, Answer]
SILENT: Final = (Answer.SILENT,) * 4


def answers_of(row: RowState, state: State, abi: Abi, *, uses_b_key: bool) -> Answers:
    """Return a state's answers to a row; `uses_b_key` is the CIE's.

    Where the RA is undefined, there is no caller, and the CFA has no meaning. An undecided CFA may be that of another
    frame, as in functions that switch stacks: nothing is decided about the memory there.
    """
    if row.ra is NoRule.UNDEFINED or row.cfa is None:
        return SILENT
    cfa = _cfa(row.cfa, state, abi)
    is_agreed = cfa is Answer.AGREES
    ra = _register(row.ra, RETURN_ADDRESS, abi.arch.ra_register, state, abi, is_cfa_right=is_agreed)
    fp = _register(row.fp, CALLER_FP, abi.arch.fp_register, state, abi, is_cfa_right=is_agreed)
    return cfa, ra, fp, _signing(row.signing, state, abi, uses_b_key=uses_b_key)


def signing_key(signing: RaSigning, *, uses_b_key: bool) -> int:
    """Return the number of the key that signs the RA; 0 for none."""
    return 0 if signing is RaSigning.NONE else 1 + uses_b_key


def _signing(signing: RaSigning, state: State, abi: Abi, *, uses_b_key: bool) -> Answer:
    if not abi.arch.ra_may_be_signed:
        return Answer.SILENT
    if signing not in (RaSigning.NONE, RaSigning.SIGNED):
        return Answer.UNDECIDED
    return _compared(state.get(RA_SIGN_STATE), (NUMBER, signing_key(signing, uses_b_key=uses_b_key)))


def _cfa(rule: CfaRule, state: State, abi: Abi) -> Answer:
    if isinstance(rule, Expression):
        return _compared(_computed(rule.code, state, abi), _CFA)
    if isinstance(rule, NoCfa) or rule.register is None or rule.deref:
        return Answer.UNDECIDED
    value = state.get(rule.register)
    if value is None and abi.clobbered >> rule.register & 1:
        # Functions that load the registers of another frame have its address in such a register.
        return Answer.UNDECIDED
    bases = state[abi.arch.sp_register][0], state.get(abi.arch.fp_register, RETURN_ADDRESS)[0]
    if (value is None or value[0] >= 0) and CFA in bases:
        # SP or FP leads to the CFA, and this register has another value.
        return Answer.CONTRADICTS
    # Sums with values of other bases are not followed, but are no CFA.
    return _compared(plus(value, rule.offset) or value, _CFA)


def _computed(code: bytes, state: State, abi: Abi, value: Value | TableWord | None = None) -> Value | TableWord | None:
    """Return the value of an expression of a first value, registers, added numbers, and words of the frame.

    None where it has other operations, or its value is unknown.
    """
    for opcode, operands in _operations_of(code, abi.arch.byte_order):
        if opcode in _REGISTERS:
            value = plus(state.get(opcode - d.DW_OP_breg0), operands[0])
        elif opcode == d.DW_OP_plus_uconst:
            value = plus(value, operands[0])
        elif opcode == d.DW_OP_deref and value is not None:
            value = state.get(value[:2])
        else:
            return None
    return value


@lru_cache(maxsize=64)
def _operations_of(code: bytes, byte_order: str) -> tuple[Operation, ...]:
    """Return the operations of an expression; an unknown one for a damaged expression."""
    try:
        return parse_expression(code, byte_order)
    except CfiError:
        return (Operation(0, ()),)


def _register(
    rule: RegisterRule, wanted: Value, register: int, state: State, abi: Abi, *, is_cfa_right: bool
) -> Answer:
    """Return the answer of a state to the rule of a register, whose value at the entry is `wanted`."""
    if rule is NoRule.UNDEFINED:
        return Answer.SILENT
    value: Value | TableWord | None
    if isinstance(rule, NoRule):
        value = state.get(register)
    elif isinstance(rule, Expression):
        value = _computed(rule.code, state, abi, _CFA if is_cfa_right else None)
        if value is None:
            return Answer.UNDECIDED
        if rule.deref:
            value = state.get(value[:2])
    elif rule.register is not None and rule.is_register:
        value = state.get(rule.register)
    elif rule.is_saved_at_cfa and is_cfa_right:
        value = state.get((CFA, rule.offset))
    else:
        return Answer.UNDECIDED
    if value is None and is_cfa_right and wanted in state.values():
        # The caller's value is elsewhere.
        return Answer.CONTRADICTS
    return _compared(value, wanted)


def _compared(value: Value | TableWord | None, wanted: Value) -> Answer:
    """Return the answer of a value to the one that a rule promises."""
    if value == wanted:
        return Answer.AGREES
    return Answer.UNDECIDED if value is None or value[0] >= 0 or value[0] < NUMBER else Answer.CONTRADICTS
