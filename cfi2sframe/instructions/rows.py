# SPDX-License-Identifier: Apache-2.0
"""States of the machine as rows of the DWARF row table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.leb128 import encode_sleb, encode_uleb
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState
from cfi2sframe.instructions.effects import RA_SIGN_STATE
from cfi2sframe.instructions.states import CALLER_FP, CFA, NO_CALLER, NUMBER, RETURN_ADDRESS
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule
    from cfi2sframe.instructions.effects import Abi
    from cfi2sframe.instructions.states import State, Value

_CALLER: Final = (CALLER_FP, 0)
_RA: Final = (RETURN_ADDRESS, 0)
_NO_CALLER: Final = (NO_CALLER, 0)
#: A process begins without a caller; what the CFA is has no meaning there.
_OUTERMOST: Final = RowState(None, NoRule.UNDEFINED, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


def row_of(state: State, abi: Abi, *, at_call: bool = False) -> RowState | None:
    """Return the row of a state, None where nothing leads to the CFA or to the RA.

    `at_call`: what is below SP belongs to the function that is called. The CFA counts from SP where its distance is
    known, else from FP; else it is in the frame, or counts from another register, which readers know in the topmost
    frame only, and which a call may change. FP's rule is its slot while that is above SP, so that a function that saves
    FP first and changes it later needs no row for that.
    """
    ra = _ra(state, abi)
    if ra is NoRule.UNDEFINED:
        return _OUTERMOST
    cfa = _cfa(state, abi, at_call=at_call)
    if cfa is None or ra is None:
        return None
    fp = _fp(state, abi, 0 if at_call else abi.red_zone)
    signing = state.get(RA_SIGN_STATE)
    if not abi.arch.fixed_ra_offset and signing is None:
        return None
    is_signed = signing is not None and signing != (NUMBER, 0)
    return RowState(cfa, ra, fp, NoRule.UNSPECIFIED, RaSigning.SIGNED if is_signed else RaSigning.NONE)


def _cfa(state: State, abi: Abi, *, at_call: bool) -> CfaRule | None:
    for register in (abi.arch.sp_register, abi.arch.fp_register):
        value = state.get(register)
        if value is not None and value[0] == CFA:
            return Rule(register, -value[1], deref=False)
    saved, is_exact = _saved_cfa(state, abi)
    others = [
        key
        for key, value in state.items()
        if isinstance(key, int) and value[0] == CFA and not (at_call and abi.clobbered >> key & 1)
    ]
    # SFrame has rows for a copy of the CFA in the frame, but for no sum with what is loaded.
    if others and not is_exact:
        register = max(others, key=lambda key: (not abi.clobbered >> key & 1, -key))
        return Rule(register, -state[register][1], deref=False)
    return saved


def _saved_cfa(state: State, abi: Abi) -> tuple[Expression | None, bool]:
    """Return where in the frame a copy of SP tells the CFA, and whether it is the CFA itself, which is best."""
    found: Expression | None = None
    for register in (abi.arch.sp_register, abi.arch.fp_register):
        base = state.get(register)
        for place, saved in _slots(state) if base is not None else ():
            if base is None or saved[0] != CFA or place[0] != base[0] or place[1] < base[1]:
                continue
            code = _address(register, place[1] - base[1]) + bytes((d.DW_OP_deref,)) + _plus(-saved[1])
            if saved[1] == 0:
                return Expression(code, deref=False), True
            found = found or Expression(code, deref=False)
    return found, False


def _ra(state: State, abi: Abi) -> RegisterRule | None:
    """Return the RA's rule; None where nothing leads to it."""
    if abi.arch.fixed_ra_offset:
        saved = state.get((CFA, abi.arch.fixed_ra_offset))
        if saved == _NO_CALLER:
            return NoRule.UNDEFINED
        sp = state.get(abi.arch.sp_register)
        # The RA is not looked for below SP, where it has been popped from.
        if saved == _RA and not (sp is not None and sp[0] == CFA and sp[1] > abi.arch.fixed_ra_offset):
            return Rule(None, abi.arch.fixed_ra_offset, deref=True)
    else:
        value = state.get(abi.arch.ra_register)
        if value == _NO_CALLER:
            return NoRule.UNDEFINED
        slot = _slot_of(state, abi, _RA, abi.arch.ra_register, 0)
        if slot is not None:
            return slot
        if value == _RA:
            return NoRule.UNSPECIFIED
    return _in_register(state, _RA)


def _fp(state: State, abi: Abi, red_zone: int) -> RegisterRule:
    slot = _slot_of(state, abi, _CALLER, abi.arch.fp_register, red_zone)
    if slot is not None:
        return slot
    if state.get(abi.arch.fp_register) == _CALLER:
        return NoRule.UNSPECIFIED
    register = _in_register(state, _CALLER)
    if register is not None:
        return register
    for place, value in _slots(state):
        for base_register in (abi.arch.sp_register, abi.arch.fp_register) if value == _CALLER else ():
            base = state.get(base_register)
            if base is not None and base[0] == place[0] and place[1] >= base[1]:
                return Expression(_address(base_register, place[1] - base[1]), deref=True)
    # The caller's value cannot be told: a row without FP would say that the register has it.
    return NoRule.UNDEFINED


def _slots(state: State) -> list[tuple[Value, tuple[int, ...]]]:
    """Return the places of memory that a state knows, with their values."""
    return [(key, (value[0], value[1])) for key, value in state.items() if isinstance(key, tuple)]


def _in_register(state: State, wanted: Value) -> Rule | None:
    register = next((key for key, value in state.items() if value == wanted and isinstance(key, int)), None)
    return None if register is None else Rule(register, 0, deref=False)


def _slot_of(state: State, abi: Abi, wanted: Value, register: int, red_zone: int) -> Rule | None:
    """Return the slot that holds a value, counted from the CFA: of those not below SP's red zone, the one stored first.

    Later copies may be a program's own data, such as a return address in a structure that it passes on.
    """
    sp = state.get(abi.arch.sp_register)
    lowest = sp[1] if sp is not None and sp[0] == CFA else None
    is_in_register = state.get(register) == wanted
    if is_in_register and abi.callee_area and sp == (CFA, -abi.arch.entry_cfa_offset):
        # The slots are the next function's if this is a tail call.
        return None
    if lowest is not None and not is_in_register:
        lowest -= red_zone
    offsets = [
        place[1]
        for place, value in _slots(state)
        if value == wanted and place[0] == CFA and (lowest is None or place[1] >= lowest)
    ]
    return Rule(None, offsets[0], deref=True) if offsets else None


def _address(register: int, offset: int) -> bytes:
    """Return an expression for register + offset (DWARF 5, 2.5.1.2)."""
    if register < 32:
        return bytes((d.DW_OP_breg0 + register,)) + encode_sleb(offset)
    return bytes((d.DW_OP_bregx,)) + encode_uleb(register) + encode_sleb(offset)


def _plus(offset: int) -> bytes:
    if offset == 0:
        return b""
    if offset > 0:
        return bytes((d.DW_OP_plus_uconst,)) + encode_uleb(offset)
    return bytes((d.DW_OP_consts,)) + encode_sleb(offset) + bytes((d.DW_OP_plus,))
