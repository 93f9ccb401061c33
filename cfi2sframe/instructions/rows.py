# SPDX-License-Identifier: Apache-2.0
"""Rows of the DWARF row table, for states of the machine, and for code that returns from a signal handler."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.record import SAVED_PC, SignalReturn
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.numbers import encode_sleb, encode_uleb
from cfi2sframe.dwarf.rules import CfaRule, NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.instructions.effects import RA_SIGN_STATE, Abi
from cfi2sframe.instructions.states import CALLER_FP, CFA, NO_CALLER, NUMBER, RETURN_ADDRESS, State, Value, ra_place

if TYPE_CHECKING:
    from cfi2sframe.instructions.code import Code

#: A process begins without a caller, where a CFA has no meaning.
_OUTERMOST: Final = RowState(None, NoRule.UNDEFINED, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


def row_of(state: State, abi: Abi, *, at_call: bool = False) -> RowState | None:
    """Return the row of a state, None where nothing leads to the CFA or to the RA.

    `at_call`: the memory below SP belongs to the called function. The CFA counts from SP if the state has its distance,
    else from FP. Else a word of the frame has it, or it counts from another register, which readers only have in the
    topmost frame, and which a call may change. FP's rule is its slot while that is above SP, so that a function that
    saves FP first and changes it later needs no row for that.
    """
    arch, signing = abi.arch, state.get(RA_SIGN_STATE)
    if state.get(ra_place(arch)) == NO_CALLER:
        return _OUTERMOST
    cfa, ra = _cfa(state, abi, at_call=at_call), _ra(state, abi)
    if cfa is None or ra is None or (signing is None and not arch.fixed_ra_offset):
        return None
    fp = _register(state, abi, CALLER_FP, arch.fp_register, 0 if at_call else abi.red_zone)
    if fp is None:
        # If nothing has the caller's value, a row without a rule for FP would claim that the register does.
        slot = _address_of(state, abi, CALLER_FP)
        fp = NoRule.UNDEFINED if slot is None else Expression(slot, deref=True)
    is_signed = signing is not None and signing != (NUMBER, 0)
    return RowState(cfa, ra, fp, NoRule.UNSPECIFIED, RaSigning.SIGNED if is_signed else RaSigning.NONE)


def _cfa(state: State, abi: Abi, *, at_call: bool) -> CfaRule | None:
    for register in (abi.arch.sp_register, abi.arch.fp_register):
        value = state.get(register)
        if value is not None and value[0] == CFA:
            return Rule(register, -value[1], deref=False)
    copy = _address_of(state, abi, (CFA, 0))
    if copy is not None:
        return Expression(copy + bytes((d.DW_OP_deref,)), deref=False)
    others = [
        key
        for key, value in state.items()
        if isinstance(key, int) and value[0] == CFA and not (at_call and abi.clobbered >> key & 1)
    ]
    if not others:
        return None
    register = max(others, key=lambda key: (not abi.clobbered >> key & 1, -key))
    return Rule(register, -state[register][1], deref=False)


def _ra(state: State, abi: Abi) -> RegisterRule | None:
    """Return the RA's rule; None where nothing leads to it."""
    slot = abi.arch.fixed_ra_offset
    if not slot:
        return _register(state, abi, RETURN_ADDRESS, abi.arch.ra_register, 0)
    sp = state.get(abi.arch.sp_register, RETURN_ADDRESS)
    # Below SP, the RA has been popped.
    if state.get((CFA, slot)) == RETURN_ADDRESS and not (sp[0] == CFA and sp[1] > slot):
        return Rule(None, slot, deref=True)
    return _in_register(state, RETURN_ADDRESS)


def _register(state: State, abi: Abi, wanted: Value, register: int, red_zone: int) -> RegisterRule | None:
    """Return the rule of a register's value at the entry: a slot, its register or another one; None without any.

    Slots are not below SP's red zone. Of several, the rule has the one stored first: later copies may be a program's
    own data, such as a return address in a structure that it passes on.
    """
    sp = state.get(abi.arch.sp_register, RETURN_ADDRESS)
    is_in_register = state.get(register) == wanted
    # At a tail call, the slots belong to the next function.
    if not (is_in_register and abi.callee_area and sp == (CFA, -abi.arch.entry_cfa_offset)):
        lowest = sp[1] - (0 if is_in_register else red_zone)
        for key, value in state.items():
            if value == wanted and isinstance(key, tuple) and key[0] == CFA and (sp[0] != CFA or key[1] >= lowest):
                return Rule(None, key[1], deref=True)
    return NoRule.UNSPECIFIED if is_in_register else _in_register(state, wanted)


def _in_register(state: State, wanted: Value) -> Rule | None:
    register = next((key for key, value in state.items() if value == wanted and isinstance(key, int)), None)
    return None if register is None else Rule(register, 0, deref=False)


def _address_of(state: State, abi: Abi, wanted: Value) -> bytes | None:
    """Return an expression for the address, above SP or FP, of a word with a value (DWARF 5, 2.5.1.2)."""
    for register in (abi.arch.sp_register, abi.arch.fp_register):
        base = state.get(register)
        if base is None:
            continue
        for key, value in state.items():
            if value == wanted and isinstance(key, tuple) and key[0] == base[0] and key[1] >= base[1]:
                return bytes((d.DW_OP_breg0 + register,)) + encode_sleb(key[1] - base[1])
    return None


class SignalCode(NamedTuple):
    """A range of code that returns from a signal handler, and the row for all of it."""

    start: int
    end: int
    state: RowState


def signal_code(code: "Code", entries: Iterable[int]) -> Iterator[SignalCode]:
    """Yield the code at some entries that returns from a signal handler: `__restore_rt`, `__kernel_rt_sigreturn`.

    No return proves this code, as it never returns to a caller, but its system call does: where the number is loaded
    and the call made, the kernel's record of the interrupted registers is at a fixed distance from SP.

    A no-op before this code belongs to it: readers look up the address to which the handler returns minus one.
    """
    arch = code.abi.arch
    for vaddr in entries:
        for form in arch.signal_returns:
            end = vaddr + len(form.code)
            if code.holds(vaddr) and code.read(vaddr, end) == form.code:
                before = vaddr - arch.instruction_alignment
                is_filled = code.holds(before) and re.fullmatch(arch.fill, code.read(before, vaddr), re.DOTALL)
                yield SignalCode(before if is_filled else vaddr, end, _signal_row(arch, form))


def _signal_row(arch: Arch, form: SignalReturn) -> RowState:
    def address_of(register: int) -> bytes:
        offset = 8 * arch.signal_words.index(register)
        base = bytes((d.DW_OP_breg0 + arch.sp_register,))
        if form.is_pointer:
            return base + encode_sleb(form.distance) + bytes((d.DW_OP_deref,)) + _plus(offset)
        return base + encode_sleb(form.distance + offset)

    cfa = address_of(arch.sp_register) + bytes((d.DW_OP_deref,)) + _plus(-arch.sp_offset_from_cfa)
    ra, fp = (Expression(address_of(register), deref=True) for register in (SAVED_PC, arch.fp_register))
    return RowState(Expression(cfa, deref=False), ra, fp, NoRule.UNSPECIFIED, RaSigning.NONE)


def _plus(offset: int) -> bytes:
    return bytes((d.DW_OP_plus_uconst,)) + encode_uleb(offset) if offset else b""
