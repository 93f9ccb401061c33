# SPDX-License-Identifier: Apache-2.0
"""What call frame instructions do to the rules of CFA, RA, FP and SP, between one advance and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import read_sleb, read_uleb
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    InRegister,
    IsExpression,
    NoRule,
    RaSigning,
    RegisterOffset,
    RowState,
    ValueAtCfa,
)
from cfi2sframe.elf.constants import EM_AARCH64
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule

_TOGGLED_SIGNING: Final = {
    RaSigning.NONE: RaSigning.SIGNED,
    RaSigning.SIGNED: RaSigning.NONE,
    RaSigning.SIGNED_WITH_PC: RaSigning.NONE,
}
#: The instruction negates the bit that says "signed" and the one that says "with the PC" (AADWARF64, 4.4).
_TOGGLED_SIGNING_WITH_PC: Final = {
    RaSigning.NONE: RaSigning.SIGNED_WITH_PC,
    RaSigning.SIGNED: RaSigning.SIGNED_WITH_PC,
    RaSigning.SIGNED_WITH_PC: RaSigning.NONE,
}
_OPERAND_OPCODES: Final = frozenset(range(d.DW_CFA_offset_extended, d.DW_CFA_val_expression + 1))
_SIGNED_OFFSETS: Final = frozenset((d.DW_CFA_offset_extended_sf, d.DW_CFA_val_offset_sf))
_VALUE_OFFSETS: Final = frozenset((d.DW_CFA_val_offset, d.DW_CFA_val_offset_sf))


class Remembered:
    """A remembered state, whose `stack` has those below it; compared by identity, see `RememberStack`."""

    __slots__ = ("state",)

    def __init__(self, state: RegisterState) -> None:
        self.state = state


class RegisterState(NamedTuple):
    """All that the instructions so far have settled.

    An expression hides the CFA's register and offset, but later instructions may build on them: hand-written CFI does
    so, and unwinders keep them. `cfa_register` None: no rule yet.
    """

    cfa_register: int | None
    cfa_offset: int
    cfa_expression: bytes | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    signing: RaSigning
    stack: Remembered | None


class RememberStack:
    """Makes equal stacks one object, so that states with stacks of any depth compare and hash in no time."""

    def __init__(self) -> None:
        self._known: dict[RegisterState, Remembered] = {}

    def push(self, state: RegisterState) -> Remembered:
        """Return the stack of `state.stack` with the state on top."""
        # The stack below is part of the state.
        found = self._known.get(state)
        if found is None:
            found = self._known[state] = Remembered(state)
        return found


class Registers:
    """The working copy of a state, for one CIE.

    `blocks` are the expressions of the file: equal ones become one object, so that states compare and hash in no time.
    """

    def __init__(self, cie: DwarfCie, arch: Arch, stack: RememberStack, blocks: dict[bytes, bytes]) -> None:
        self._data_alignment = cie.data_alignment
        self._signs_ra = arch.elf_machine == EM_AARCH64
        # Rules of RA, FP and SP, in this order; the slots say which register is which.
        self._slots = {arch.fp_register: 1, arch.sp_register: 2, cie.ra_register: 0}
        self._remember_stack = stack
        self._blocks = blocks
        self._initial_rules: tuple[RegisterRule, RegisterRule, RegisterRule] | None = None
        unspecified = NoRule.UNSPECIFIED
        self.load(RegisterState(None, 0, None, unspecified, unspecified, unspecified, RaSigning.NONE, None))

    def load(self, state: RegisterState) -> None:
        """Take up a state."""
        self._cfa_register, self._cfa_offset, self._cfa_expression = state[:3]
        self._rules: list[RegisterRule] = [state.ra, state.fp, state.sp]
        self._signing = state.signing
        self._stack = state.stack

    def freeze(self) -> RegisterState:
        """Return the state as it is now."""
        ra, fp, sp = self._rules
        return RegisterState(
            self._cfa_register, self._cfa_offset, self._cfa_expression, ra, fp, sp, self._signing, self._stack
        )

    def set_initial_rules(self) -> None:
        """Take the current rules as those that DW_CFA_restore goes back to: the CIE has been run."""
        ra, fp, sp = self._rules
        self._initial_rules = (ra, fp, sp)

    @staticmethod
    def row_of(state: RegisterState) -> RowState:
        """Return what a state says of a row."""
        cfa: CfaRule | None = None
        if state.cfa_expression is not None:
            cfa = CfaExpression(state.cfa_expression)
        elif state.cfa_register is not None:
            cfa = RegisterOffset(state.cfa_register, state.cfa_offset)
        return RowState(cfa, state.ra, state.fp, state.sp, state.signing)

    def execute(self, code: bytes) -> None:
        """Run instructions, none of them an advance.

        Raises `CfiError`, its offset that of the instruction in `code`, when one is unknown, truncated or out of
        context.
        """
        position, end = 0, len(code)
        while position < end:
            try:
                position = self._step(code, position + 1, code[position])
            except CfiError as error:
                raise CfiError(error.reason, "", position) from None

    def _step(self, code: bytes, position: int, opcode: int) -> int:
        """Run the instruction whose operands start at `position`; return the offset past it."""
        if opcode >= d.DW_CFA_restore:
            self._restore(opcode & 0x3F)
        elif opcode >= d.DW_CFA_offset:
            value, position = read_uleb(code, position)
            self._set(opcode & 0x3F, AtCfa(value * self._data_alignment))
        elif opcode == d.DW_CFA_def_cfa_offset:
            value, position = read_uleb(code, position)
            self._define_cfa_offset(value)
        elif opcode == d.DW_CFA_nop:
            pass
        elif opcode == d.DW_CFA_remember_state:
            self._stack = self._remember_stack.push(self.freeze())
        elif opcode == d.DW_CFA_restore_state:
            if self._stack is None:
                raise CfiError("restore_state without a remembered state")
            self.load(self._stack.state)
        elif opcode in _OPERAND_OPCODES:
            position = self._step_with_operands(code, position, opcode)
        elif opcode == d.DW_CFA_GNU_args_size:
            # The size of pushed arguments matters to exception handlers, not to stack traces.
            _, position = read_uleb(code, position)
        elif opcode == d.DW_CFA_GNU_negative_offset_extended:
            register, position = read_uleb(code, position)
            value, position = read_uleb(code, position)
            self._set(register, AtCfa(-value * self._data_alignment))
        elif opcode == d.DW_CFA_AARCH64_negate_ra_state and self._signs_ra:
            # Older GCC wrote it as DW_CFA_GNU_window_save, which is the same number.
            self._signing = _TOGGLED_SIGNING[self._signing]
        elif opcode == d.DW_CFA_AARCH64_set_ra_state and self._signs_ra:
            value, position = read_uleb(code, position)
            self._set_signing(value)
            # How far back the signing instruction is: of use to those who check the signature.
            _, position = read_sleb(code, position)
        elif opcode == d.DW_CFA_AARCH64_negate_ra_state_with_pc and self._signs_ra:
            self._signing = _TOGGLED_SIGNING_WITH_PC[self._signing]
        else:
            raise CfiError(f"unknown call frame instruction 0x{opcode:02x}")
        return position

    def _step_with_operands(self, code: bytes, position: int, opcode: int) -> int:
        """Run an instruction from offset_extended to val_expression; return the offset past it."""
        if opcode == d.DW_CFA_def_cfa_expression:
            self._cfa_expression, position = self._block(code, position)
            return position
        if opcode == d.DW_CFA_def_cfa_offset_sf:
            value, position = read_sleb(code, position)
            self._define_cfa_offset(value * self._data_alignment)
            return position
        register, position = read_uleb(code, position)
        if opcode == d.DW_CFA_def_cfa:
            value, position = read_uleb(code, position)
            self._define_cfa(register, value)
        elif opcode == d.DW_CFA_def_cfa_sf:
            value, position = read_sleb(code, position)
            self._define_cfa(register, value * self._data_alignment)
        elif opcode == d.DW_CFA_def_cfa_register:
            if self._cfa_register is None:
                raise CfiError("def_cfa_register before any rule of the CFA")
            self._define_cfa(register, self._cfa_offset)
        elif opcode == d.DW_CFA_restore_extended:
            self._restore(register)
        else:
            rule, position = self._rule(code, position, opcode)
            self._set(register, rule)
        return position

    def _rule(self, code: bytes, position: int, opcode: int) -> tuple[RegisterRule, int]:
        """Return the rule that an instruction gives its register, and the offset past it."""
        if opcode == d.DW_CFA_undefined:
            return NoRule.UNDEFINED, position
        if opcode == d.DW_CFA_same_value:
            return NoRule.SAME_VALUE, position
        if opcode == d.DW_CFA_register:
            source, position = read_uleb(code, position)
            return InRegister(source), position
        if opcode == d.DW_CFA_expression:
            expression, position = self._block(code, position)
            return AtExpression(expression), position
        if opcode == d.DW_CFA_val_expression:
            expression, position = self._block(code, position)
            return IsExpression(expression), position
        value, position = (read_sleb if opcode in _SIGNED_OFFSETS else read_uleb)(code, position)
        offset = value * self._data_alignment
        return ValueAtCfa(offset) if opcode in _VALUE_OFFSETS else AtCfa(offset), position

    def _block(self, code: bytes, position: int) -> tuple[bytes, int]:
        size, position = read_uleb(code, position)
        if position + size > len(code):
            raise CfiError("the expression leaves the entry")
        block = code[position : position + size]
        return self._blocks.setdefault(block, block), position + size

    def _define_cfa(self, register: int, offset: int) -> None:
        self._cfa_register, self._cfa_offset, self._cfa_expression = register, offset, None

    def _define_cfa_offset(self, offset: int) -> None:
        """Change the offset alone; an expression stays in force (as unwinders do it; DWARF does not allow the case)."""
        if self._cfa_register is None and self._cfa_expression is None:
            raise CfiError("def_cfa_offset before any rule of the CFA")
        self._cfa_offset = offset

    def _set_signing(self, value: int) -> None:
        if value > max(RaSigning):
            raise CfiError(f"set_ra_state to {value}, which is no state")
        self._signing = RaSigning(value)

    def _set(self, register: int, rule: RegisterRule) -> None:
        slot = self._slots.get(register)
        if slot is not None:
            self._rules[slot] = rule

    def _restore(self, register: int) -> None:
        if self._initial_rules is None:
            raise CfiError("restore in a CIE, which has no initial rules to restore")
        slot = self._slots.get(register)
        if slot is not None:
            # A register that the CIE never set goes back to having no rule.
            self._rules[slot] = self._initial_rules[slot]
