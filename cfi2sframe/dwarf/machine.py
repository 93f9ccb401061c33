# SPDX-License-Identifier: Apache-2.0
"""The CFI row machine (DWARF 5, 6.4.2 and 6.4.3): a CIE and instruction bytes become rows.

Follows CFA, RA, FP and SP; the rules of other registers are stepped over. Knows nothing of SFrame, and nothing of where
a function lies, but for DW_CFA_set_loc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import read_sleb, read_uleb
from cfi2sframe.dwarf.pointer import read_pointer
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    CfiRow,
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
    from cfi2sframe.dwarf.pointer import PointerBases
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule

_TOGGLED_SIGNING: Final = {
    RaSigning.NONE: RaSigning.SIGNED,
    RaSigning.SIGNED: RaSigning.NONE,
    RaSigning.SIGNED_WITH_PC: RaSigning.NONE,
}
_OPERAND_OPCODES: Final = frozenset(range(d.DW_CFA_offset_extended, d.DW_CFA_val_expression + 1))


class Location(NamedTuple):
    """What DW_CFA_set_loc needs: the function's start, where the instructions stand, and how pointers resolve."""

    pc_begin_vaddr: int
    instructions_vaddr: int
    bases: PointerBases


class CfiProgram(NamedTuple):
    """The rows of an instruction string; `depends_on_location` when another place of it may give other rows."""

    rows: tuple[CfiRow, ...]
    depends_on_location: bool


def run(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> CfiProgram:
    """Interpret an FDE's instructions behind its CIE's.

    Rows ascend from 0; neighbours differ; a row of no length is replaced by its successor. The rows know nothing of
    the function's size: those that start behind its end are the caller's to cut.
    Raises `CfiError`, its offset counted from the first instruction, when an instruction is unknown, truncated or out
    of context, or needs a `location` that was not given.
    """
    machine = _Machine(cie, arch, location)
    machine.execute(cie.instructions, is_cie=True)
    machine.start_fde()
    machine.execute(instructions, is_cie=False)
    return machine.finish()


class _Machine:
    def __init__(self, cie: DwarfCie, arch: Arch, location: Location | None) -> None:
        self.cie = cie
        self.location = location
        self.order = "little" if arch.byte_order == "<" else "big"
        self.signs_ra = arch.elf_machine == EM_AARCH64
        # An expression hides the register and the offset, but later instructions may still build on those: hand-written
        # CFI does so, and unwinders keep them. None: no rule has been given yet.
        self.cfa_register: int | None = None
        self.cfa_offset = 0
        self.cfa_expression: bytes | None = None
        # Rules of RA, FP and SP, in this order; `slots` says which register is which.
        self.rules: list[RegisterRule] = [NoRule.UNSPECIFIED] * 3
        self.slots = {cie.ra_register: 0, arch.fp_register: 1, arch.sp_register: 2}
        self.signing = RaSigning.NONE
        self.initial_rules: tuple[RegisterRule, ...] = ()
        self.stack: list[tuple[int | None, int, bytes | None, list[RegisterRule], RaSigning]] = []
        self.delta = 0
        self.rows: list[CfiRow] = []
        self.last_state: tuple[object, ...] = ()
        self.depends_on_location = False

    def start_fde(self) -> None:
        self.initial_rules = tuple(self.rules)
        self.rows.clear()
        self.last_state = ()
        self.delta = 0

    def finish(self) -> CfiProgram:
        self.close_row()
        return CfiProgram(tuple(self.rows), self.depends_on_location)

    def close_row(self) -> None:
        """Record the current state as the row from the current delta on."""
        state = (self.cfa_expression, self.cfa_register, self.cfa_offset, *self.rules, self.signing)
        if state != self.last_state:
            self.last_state = state
            self.rows.append(CfiRow(self.delta, self.state()))

    def state(self) -> RowState:
        ra, fp, sp = self.rules
        return RowState(self.cfa_rule(), ra, fp, sp, self.signing)

    def cfa_rule(self) -> CfaRule | None:
        if self.cfa_expression is not None:
            return CfaExpression(self.cfa_expression)
        return None if self.cfa_register is None else RegisterOffset(self.cfa_register, self.cfa_offset)

    def advance(self, amount: int) -> None:
        if amount:
            self.close_row()
            self.delta += amount

    def execute(self, code: bytes, *, is_cie: bool) -> None:  # noqa: C901, PLR0912, PLR0915
        """Run one instruction string. One loop and a chain in order of frequency: this is the program's hot spot."""
        cie, rules, slots = self.cie, self.rules, self.slots
        code_alignment, data_alignment = cie.code_alignment, cie.data_alignment
        position, end = 0, len(code)
        start = 0
        try:
            while position < end:
                start = position
                opcode = code[position]
                position += 1
                if opcode >= 0x40:
                    operand = opcode & 0x3F
                    if opcode < 0x80:
                        self.advance(operand * code_alignment)
                    elif opcode < 0xC0:
                        value = code[position]
                        position += 1
                        if value >= 0x80:
                            value, position = read_uleb(code, position - 1)
                        if operand in slots:
                            rules[slots[operand]] = AtCfa(value * data_alignment)
                    elif operand in slots:
                        self.restore(slots[operand], is_cie=is_cie)
                elif opcode == 0x0E:  # def_cfa_offset
                    value = code[position]
                    position += 1
                    if value >= 0x80:
                        value, position = read_uleb(code, position - 1)
                    self.define_cfa_offset(value)
                elif opcode == 0x00:  # nop
                    continue
                elif opcode == 0x0A:  # remember_state
                    self.stack.append(
                        (self.cfa_register, self.cfa_offset, self.cfa_expression, rules.copy(), self.signing)
                    )
                elif opcode == 0x0B:  # restore_state
                    if not self.stack:
                        raise CfiError("restore_state without a remembered state")
                    saved = self.stack.pop()
                    self.cfa_register, self.cfa_offset, self.cfa_expression, rules[:], self.signing = saved
                elif opcode == 0x0D:  # def_cfa_register
                    register, position = read_uleb(code, position)
                    if self.cfa_register is None:
                        raise CfiError("def_cfa_register before any rule of the CFA")
                    self.define_cfa(register, self.cfa_offset)
                elif opcode == 0x0C:  # def_cfa
                    register, position = read_uleb(code, position)
                    value, position = read_uleb(code, position)
                    self.define_cfa(register, value)
                elif opcode == 0x02:
                    self.advance(code[position] * code_alignment)
                    position += 1
                elif opcode in (0x03, 0x04):
                    size = 2 if opcode == 0x03 else 4
                    self.advance(self.fixed(code, position, size) * code_alignment)
                    position += size
                elif opcode in _OPERAND_OPCODES:
                    position = self.execute_with_operands(code, position, opcode, is_cie=is_cie)
                elif opcode == d.DW_CFA_GNU_args_size:
                    # The size of pushed arguments matters to exception handlers, not to stack traces.
                    _, position = read_uleb(code, position)
                elif opcode == d.DW_CFA_GNU_negative_offset_extended:
                    register, position = read_uleb(code, position)
                    value, position = read_uleb(code, position)
                    if register in slots:
                        rules[slots[register]] = AtCfa(-value * data_alignment)
                elif opcode == d.DW_CFA_AARCH64_negate_ra_state and self.signs_ra:
                    # Older GCC wrote it as DW_CFA_GNU_window_save, which is the same number.
                    self.signing = _TOGGLED_SIGNING[self.signing]
                elif opcode == d.DW_CFA_AARCH64_negate_ra_state_with_pc and self.signs_ra:
                    self.signing = RaSigning.SIGNED_WITH_PC
                elif opcode == d.DW_CFA_set_loc:
                    position = self.set_loc(code, position)
                elif opcode == d.DW_CFA_MIPS_advance_loc8:
                    self.advance(self.fixed(code, position, 8) * code_alignment)
                    position += 8
                else:
                    raise CfiError(f"unknown call frame instruction 0x{opcode:02x}")
        except IndexError:
            raise CfiError("truncated call frame instruction", "", start) from None
        except CfiError as error:
            raise CfiError(error.reason, "", start) from None

    def execute_with_operands(self, code: bytes, position: int, opcode: int, *, is_cie: bool) -> int:
        """Run one of the rarer instructions from offset_extended to val_expression; return the offset past it."""
        slots, rules, data_alignment = self.slots, self.rules, self.cie.data_alignment
        if opcode == d.DW_CFA_def_cfa_expression:
            expression, position = self.block(code, position)
            self.cfa_expression = expression
            return position
        if opcode == d.DW_CFA_def_cfa_offset_sf:
            value, position = read_sleb(code, position)
            self.define_cfa_offset(value * data_alignment)
            return position
        register, position = read_uleb(code, position)
        if opcode == d.DW_CFA_def_cfa_sf:
            value, position = read_sleb(code, position)
            self.define_cfa(register, value * data_alignment)
            return position
        rule: RegisterRule
        if opcode == d.DW_CFA_undefined:
            rule = NoRule.UNDEFINED
        elif opcode == d.DW_CFA_same_value:
            rule = NoRule.SAME_VALUE
        elif opcode == d.DW_CFA_restore_extended:
            if register in slots:
                self.restore(slots[register], is_cie=is_cie)
            return position
        elif opcode == d.DW_CFA_register:
            source, position = read_uleb(code, position)
            rule = InRegister(source)
        elif opcode in (d.DW_CFA_expression, d.DW_CFA_val_expression):
            expression, position = self.block(code, position)
            rule = AtExpression(expression) if opcode == d.DW_CFA_expression else IsExpression(expression)
        else:
            signed = opcode in (d.DW_CFA_offset_extended_sf, d.DW_CFA_val_offset_sf)
            value, position = (read_sleb if signed else read_uleb)(code, position)
            value *= data_alignment
            is_value = opcode in (d.DW_CFA_val_offset, d.DW_CFA_val_offset_sf)
            rule = ValueAtCfa(value) if is_value else AtCfa(value)
        if register in slots:
            rules[slots[register]] = rule
        return position

    def fixed(self, code: bytes, position: int, size: int) -> int:
        if position + size > len(code):
            raise IndexError
        return int.from_bytes(code[position : position + size], "little" if self.order == "little" else "big")

    def block(self, code: bytes, position: int) -> tuple[bytes, int]:
        size, position = read_uleb(code, position)
        if position + size > len(code):
            raise CfiError("the expression leaves the entry")
        return code[position : position + size], position + size

    def define_cfa(self, register: int, offset: int) -> None:
        self.cfa_register, self.cfa_offset, self.cfa_expression = register, offset, None

    def define_cfa_offset(self, offset: int) -> None:
        """Change the offset alone; an expression stays in force (as unwinders do it; DWARF does not allow the case)."""
        if self.cfa_register is None and self.cfa_expression is None:
            raise CfiError("def_cfa_offset before any rule of the CFA")
        self.cfa_offset = offset

    def restore(self, slot: int, *, is_cie: bool) -> None:
        if is_cie:
            raise CfiError("restore in a CIE, which has no initial rules to restore")
        # A register that the CIE never set goes back to having no rule.
        self.rules[slot] = self.initial_rules[slot]

    def set_loc(self, code: bytes, position: int) -> int:
        self.depends_on_location = True
        if self.location is None:
            raise CfiError("set_loc outside a function")
        where = self.location
        vaddr, end = read_pointer(code, position, self.cie.fde_encoding, where.bases, where.instructions_vaddr)
        delta = vaddr - where.pc_begin_vaddr
        if delta < self.delta:
            raise CfiError(f"set_loc goes back to 0x{vaddr:x}")
        self.advance(delta - self.delta)
        return end
