# SPDX-License-Identifier: Apache-2.0
"""States to rows of the DWARF row table, or to the reason why a state has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.decoder import MEMORY_BIT
from cfi2sframe.code.effects import RA_SIGN_STATE
from cfi2sframe.code.values import CALLER_FP, CFA, CONSTANT, NO_CALLER, RETURN_ADDRESS, Value
from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.leb128 import encode_sleb, encode_uleb
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.code.effects import CodeArch
    from cfi2sframe.code.values import State
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule

_CALLER_FP: Final = Value(CALLER_FP, 0)
_RA: Final = Value(RETURN_ADDRESS, 0)
_NO_CALLER: Final = Value(NO_CALLER, 0)
#: A process begins without a caller; what the CFA is has no meaning there.
_OUTERMOST: Final = RowState(None, NoRule.UNDEFINED, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


class _SavedCfa(NamedTuple):
    """A rule that loads a copy of SP; `is_exact`: it is the CFA, without an offset."""

    rule: Expression
    is_exact: bool


class RowMaker:
    """Makes rows for one ABI; equal rows are one object."""

    def __init__(self, arch: CodeArch) -> None:
        self.arch = arch
        #: A bit for each register that a row may depend on where its CFA counts from SP, and for the stack.
        self.frame_bits = sum(1 << r for r in {arch.sp_register, arch.fp_register, arch.ra_register}) | MEMORY_BIT
        if arch.ra_slot is None:
            self.frame_bits |= 1 << RA_SIGN_STATE
        self._known: dict[RowState, RowState] = {}

    def is_plain(self, row: RowState | CodeReason) -> bool:
        """Whether a row counts from SP, and no other register matters than FP and the RA."""
        if isinstance(row, CodeReason) or _is_in_register(row.ra) or _is_in_register(row.fp):
            return False
        return isinstance(row.cfa, Rule) and row.cfa.register == self.arch.sp_register

    def row_of(self, state: State, *, at_call: bool = False) -> RowState | CodeReason:
        """Return the row of a state; `at_call`: what is below SP belongs to the function that is called.

        The CFA counts from SP where its distance is known, else from FP; else it is in the frame, or counts from
        another register, which readers know in the topmost frame only, and which a call may change. FP's rule is its
        slot while that is above SP, so that a function that saves FP first and changes it later needs no row for that.
        """
        arch = self.arch
        ra = self._ra(state)
        if ra is NoRule.UNDEFINED:
            return _OUTERMOST
        cfa = self._cfa(state, at_call=at_call)
        if isinstance(cfa, CodeReason):
            return cfa
        if isinstance(ra, CodeReason):
            return ra
        fp = self._fp(state, red_zone=0 if at_call else self.arch.red_zone)
        signing = state.registers.get(RA_SIGN_STATE)
        signed = signing is not None and signing != Value(CONSTANT, 0) and arch.ra_slot is None
        row = RowState(cfa, ra, fp, NoRule.UNSPECIFIED, RaSigning.SIGNED if signed else RaSigning.NONE)
        return self._known.setdefault(row, row)

    def _cfa(self, state: State, *, at_call: bool) -> CfaRule | CodeReason:
        arch, registers = self.arch, state.registers
        for register in (arch.sp_register, arch.fp_register):
            value = registers.get(register)
            if value is not None and value.base == CFA:
                return Rule(register, -value.offset, deref=False)
        saved = self._saved_cfa(state)
        others = [
            register
            for register, value in registers.items()
            if value.base == CFA and register < RA_SIGN_STATE and not (at_call and register in arch.call_clobbered)
        ]
        # SFrame has rows for a copy of the CFA in the frame, but for no sum with what is loaded.
        if others and (saved is None or not saved.is_exact):
            register = max(others, key=lambda each: (each not in arch.call_clobbered, -each))
            return Rule(register, -registers[register].offset, deref=False)
        if saved is not None:
            return saved.rule
        sp = registers.get(arch.sp_register)
        return CodeReason.PATHS_DISAGREE if sp is None else CodeReason.SP_UNKNOWN

    def _saved_cfa(self, state: State) -> _SavedCfa | None:
        """Return where in the frame a copy of SP tells the CFA, which is best where it is the CFA itself."""
        found: _SavedCfa | None = None
        for register in (self.arch.sp_register, self.arch.fp_register):
            base = state.registers.get(register)
            if base is None:
                continue
            for place, saved in state.slots.items():
                if saved.base == CFA and place.base == base.base and place.offset >= base.offset:
                    code = _load(register, place.offset - base.offset) + _plus(-saved.offset)
                    if found is None or (saved.offset == 0 and not found.is_exact):
                        found = _SavedCfa(Expression(code, deref=False), saved.offset == 0)
        return found

    def _ra(self, state: State) -> RegisterRule | CodeReason:
        arch = self.arch
        if arch.ra_slot is not None:
            saved = state.slots.get(Value(CFA, arch.ra_slot))
            sp = state.registers.get(arch.sp_register)
            # The RA is not looked for below SP, where it has been popped from.
            if saved == _RA and not (sp is not None and sp.base == CFA and sp.offset > arch.ra_slot):
                return Rule(None, arch.ra_slot, deref=True)
            if saved == _NO_CALLER:
                return NoRule.UNDEFINED
        else:
            value = state.registers.get(arch.ra_register)
            if value is not None and value.base == NO_CALLER:
                return NoRule.UNDEFINED
            slot = self._slot_of(state, _RA, 0)
            if slot is not None:
                return slot
            if value == _RA:
                return NoRule.UNSPECIFIED
        register = next((each for each, value in state.registers.items() if value == _RA), None)
        if register is not None and register < RA_SIGN_STATE:
            return Rule(register, 0, deref=False)
        return CodeReason.RA_UNKNOWN

    def _fp(self, state: State, red_zone: int) -> RegisterRule:
        slot = self._slot_of(state, _CALLER_FP, red_zone)
        if slot is not None:
            return slot
        if state.registers.get(self.arch.fp_register) == _CALLER_FP:
            return NoRule.UNSPECIFIED
        register = next((each for each, value in state.registers.items() if value == _CALLER_FP), None)
        if register is not None and register < RA_SIGN_STATE:
            return Rule(register, 0, deref=False)
        place = next((place for place, value in state.slots.items() if value == _CALLER_FP), None)
        for register in (self.arch.sp_register, self.arch.fp_register) if place is not None else ():
            base = state.registers.get(register)
            if base is not None and place is not None and base.base == place.base and place.offset >= base.offset:
                return Expression(_address(register, place.offset - base.offset), deref=True)
        # The caller's value cannot be told: a row without FP would say that the register has it.
        return NoRule.UNDEFINED

    def _slot_of(self, state: State, wanted: Value, red_zone: int) -> Rule | None:
        """Return the slot that holds a value, counted from the CFA: the highest of those not below SP's red zone."""
        if wanted not in state.slots.values():
            return None
        sp = state.registers.get(self.arch.sp_register)
        in_register = (
            state.registers.get(self.arch.fp_register if wanted == _CALLER_FP else self.arch.ra_register) == wanted
        )
        lowest = sp.offset if sp is not None and sp.base == CFA else None
        if lowest is not None and not in_register:
            lowest -= red_zone
        offsets = [
            place.offset
            for place, value in state.slots.items()
            if value == wanted and place.base == CFA and (lowest is None or place.offset >= lowest)
        ]
        return Rule(None, max(offsets), deref=True) if offsets else None


def _is_in_register(rule: RegisterRule) -> bool:
    return isinstance(rule, Rule) and rule.is_register


def _address(register: int, offset: int) -> bytes:
    """Return an expression for register + offset (DWARF 5, 2.5.1.2)."""
    if register < 32:
        return bytes((d.DW_OP_breg0 + register,)) + encode_sleb(offset)
    return bytes((d.DW_OP_bregx,)) + encode_uleb(register) + encode_sleb(offset)


def _load(register: int, offset: int) -> bytes:
    return _address(register, offset) + bytes((d.DW_OP_deref,))


def _plus(offset: int) -> bytes:
    if offset == 0:
        return b""
    if offset > 0:
        return bytes((d.DW_OP_plus_uconst,)) + encode_uleb(offset)
    return bytes((d.DW_OP_consts,)) + encode_sleb(offset) + bytes((d.DW_OP_plus,))
