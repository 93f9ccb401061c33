# SPDX-License-Identifier: Apache-2.0
"""The row machine of DWARF 5, 6.4.2 and 6.4.3: a CIE and an FDE's instructions become a table of rows.

It follows CFA, RA, FP and SP; rules of other registers are read and dropped. RA's rules are those of the column that
the CIE names. Where that is not the ABI's and has no rule, RA is in the column's register, and rows say so.

Functions repeat parts of one another, and the same instructions in the same state lead to the same state. So a machine
remembers, for each of its states, where each string of instructions has led: what has been interpreted once in a file
is looked up the next time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import Expression, classify, is_unscaled, signed_word
from cfi2sframe.dwarf.instructions import ADVANCES, CUTTER, Cutter, read_chunk, read_instructions
from cfi2sframe.dwarf.pointer import fixed_size, read_pointer
from cfi2sframe.dwarf.rules import UNKNOWN_CFA, NoRule, RaSigning, Rows, RowState, TableBuilder, UnwindTable
from cfi2sframe.errors import CfiError
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.instructions import Instruction
    from cfi2sframe.dwarf.pointer import Location
    from cfi2sframe.dwarf.rules import RegisterRule

    #: Returns the state after an instruction, given the state before it and its operands.
    Handler: TypeAlias = Callable[..., "MachineState"]


#: AArch64's pseudo-register RA_SIGN_STATE (AADWARF64, 4.1).
_RA_SIGN_STATE: Final = 34
#: What its two bits say: "with the PC" means nothing where the RA is not signed.
_SIGNING: Final = (RaSigning.NONE, RaSigning.SIGNED, RaSigning.NONE, RaSigning.SIGNED_WITH_PC)


class MachineState(NamedTuple):
    """All that instructions have set so far.

    `cfa_register` and `cfa_offset` are the CFA's last ones. They stay while the CFA is an `expression`: unwinders keep
    them, and hand-written CFI builds on them. Without an offset, the CFA after an expression is not known.

    `remembered` is the number of the state that DW_CFA_remember_state has pushed last, from 1 on; that one has the
    number of the one below it.

    `sign_bits` is AArch64's RA_SIGN_STATE as its own instructions leave it: bit 0 is "signed", bit 1 "with the PC".
    `sign_rule` is what a rule of that register says; None: it has none.
    """

    cfa_register: int | None
    cfa_offset: int | None
    expression: Expression | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    sign_bits: int = 0
    sign_rule: RaSigning | None = None
    remembered: int = 0

    @property
    def row(self) -> RowState:
        """The rules of a row that is made in this state."""
        signing = _SIGNING[self.sign_bits] if self.sign_rule is None else self.sign_rule
        return RowState(self.expression or self._cfa_sum, self.ra, self.fp, self.sp, signing)

    @property
    def _cfa_sum(self) -> Rule | None:
        if self.cfa_register is None:
            return None
        return UNKNOWN_CFA if self.cfa_offset is None else Rule(self.cfa_register, self.cfa_offset, deref=False)


class _Known(dict[bytes, "_Known"]):
    """A state and its row; maps strings of instructions without advances to the state after them.

    A string that is missing is interpreted. What reads `known[code]` for a known string runs no Python code here.
    """

    __slots__ = ("machine", "row", "state")

    def __init__(self, machine: RowMachine, state: MachineState, row: RowState) -> None:
        super().__init__()
        self.machine = machine
        self.state = state
        self.row = row

    def __missing__(self, code: bytes) -> _Known:
        known = self[code] = self.machine.after(self.state, code)
        return known


class _Chunks(dict[bytes, tuple[int, bytes]]):
    """Maps chunks to the bytes of code that they advance, and to their instructions after the advance."""

    def __init__(self, byte_order: str, code_alignment: int) -> None:
        super().__init__()
        self.byte_order = byte_order
        self.code_alignment = code_alignment

    def __missing__(self, chunk: bytes) -> tuple[int, bytes]:
        units, code = read_chunk(chunk, self.byte_order)
        read = self[chunk] = units * self.code_alignment, code
        return read


class RowMachine:
    """The row machine of one CIE.

    Raises `CfiError`, its offset counted from the CIE's first instruction, when the CIE's instructions are damaged.
    """

    def __init__(self, cie: DwarfCie, arch: Arch, cutter: Cutter = CUTTER, rows: Rows | None = None) -> None:
        self.cie = cie
        self._arch = arch
        self._cutter = cutter
        self._rows = Rows() if rows is None else rows
        self._handlers = self._HANDLERS | (self._AARCH64_HANDLERS if arch.ra_may_be_signed else {})
        self._sign_register = _RA_SIGN_STATE if arch.ra_may_be_signed else None
        ra: RegisterRule = NoRule.UNSPECIFIED
        self._ra_same_value: RegisterRule = NoRule.SAME_VALUE
        if cie.ra_register != arch.ra_register:
            ra = self._ra_same_value = Rule(cie.ra_register, 0, deref=False)
        self._remembered: list[MachineState] = []
        self._numbers: dict[MachineState, int] = {}
        self._known: dict[MachineState, _Known] = {}
        self._chunks = _Chunks(arch.byte_order, cie.code_alignment)
        # In a CIE, DW_CFA_restore takes a rule away.
        self.initial = MachineState(None, None, None, ra, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED)
        state = self.initial
        for instruction in self._read(cie.instructions):
            # An advance has no meaning in a CIE; its initial rules are those after the last instruction.
            if instruction.opcode not in ADVANCES and instruction.opcode != d.DW_CFA_set_loc:
                state = self._step(state, instruction)
        self.initial = state

    def run(self, instructions: bytes, location: Location | None = None) -> UnwindTable:
        """Interpret an FDE's instructions after the CIE's. Where several rows have the same start, the last one holds.

        Raises `CfiError`, its offset counted from the first instruction, when one is unknown, truncated or out of
        context, or needs a `location` and has none.
        """
        chunks = self._cutter.cut(instructions)
        if chunks is not None:
            try:
                return self._look_up(chunks)
            except CfiError:
                # The error is found again below, with its offset in the string.
                pass
        return self._rows.table(self._interpret(instructions, location))

    def _look_up(self, chunks: list[bytes]) -> UnwindTable:
        """Follow the chunks of a program from state to state; only a step that is new is interpreted.

        Without this memo, libLLVM takes 3.1 times as long at -O0, and 1.6 times with all that is done by default.
        """
        known = self._known_of(self.initial)
        delta, row = 0, known.row
        starts, rows = [0], [row]
        for advance, code in map(self._chunks.__getitem__, chunks):
            delta += advance
            known = known[code]
            if known.row is row:
                continue
            row = known.row
            if starts[-1] == delta:
                del starts[-1], rows[-1]
            if not rows or rows[-1] is not row:
                starts.append(delta)
                rows.append(row)
        return UnwindTable(tuple(starts), self._rows.tuple_of(rows))

    def after(self, state: MachineState, code: bytes) -> _Known:
        """Return the state after some instructions without advances. Raises `CfiError` where they are damaged."""
        for instruction in self._read(code):
            state = self._step(state, instruction)
        return self._known_of(state)

    def _known_of(self, state: MachineState) -> _Known:
        known = self._known.get(state)
        if known is None:
            known = self._known[state] = _Known(self, state, self._rows.one(state.row))
        return known

    def _interpret(self, instructions: bytes, location: Location | None) -> UnwindTable:
        """Interpret a program from its start to its end."""
        rows = TableBuilder()
        state, delta, depends_on_location = self.initial, 0, False
        for instruction in self._read(instructions):
            if instruction.opcode in ADVANCES:
                rows.add(delta, state.row)
                (units,) = instruction.operands
                delta += int(units) * self.cie.code_alignment
            elif instruction.opcode == d.DW_CFA_set_loc:
                rows.add(delta, state.row)
                delta, depends_on_location = self._set_loc(instructions, instruction, delta, location), True
            else:
                state = self._step(state, instruction)
        rows.add(delta, state.row)
        return rows.table(depends_on_location=depends_on_location)

    def _read(self, instructions: bytes) -> Iterator[Instruction]:
        return read_instructions(instructions, self._arch.byte_order, fixed_size(self.cie.fde_encoding))

    def _step(self, state: MachineState, instruction: Instruction) -> MachineState:
        """Return the state after an instruction that does not advance."""
        handler = self._handlers.get(instruction.opcode)
        if handler is None:
            raise CfiError(f"unknown call frame instruction 0x{instruction.opcode:02x}", "", instruction.offset)
        try:
            return handler(self, state, *instruction.operands)
        except CfiError as error:
            raise CfiError(error.reason, "", instruction.offset) from None

    def _set_loc(self, instructions: bytes, instruction: Instruction, delta: int, location: Location | None) -> int:
        """Return the new location: bytes from the function's start."""
        try:
            if location is None:
                raise CfiError("set_loc outside a function")
            encoding, position = self.cie.fde_encoding, instruction.offset + 1
            if encoding == d.DW_EH_PE_aligned:
                # Its padding depends on the operand's address, and no compiler is known to emit it.
                raise CfiError("set_loc to an aligned pointer is not supported")
            vaddr, _ = read_pointer(instructions, position, encoding, location.bases, location.instructions_vaddr)
            if vaddr - location.pc_begin_vaddr < delta:
                raise CfiError("set_loc goes back")
        except CfiError as error:
            raise CfiError(error.reason, "", instruction.offset) from None
        return vaddr - location.pc_begin_vaddr

    # CFA definition instructions, 6.4.2.2

    def _def_cfa(self, state: MachineState, register: int, offset: int) -> MachineState:
        return state._replace(cfa_register=register, cfa_offset=signed_word(offset), expression=None)

    def _def_cfa_sf(self, state: MachineState, register: int, factored_offset: int) -> MachineState:
        return self._def_cfa(state, register, factored_offset * self.cie.data_alignment)

    def _def_cfa_register(self, state: MachineState, register: int) -> MachineState:
        if state.cfa_register is None and state.expression is None:
            raise CfiError("def_cfa_register before any rule of the CFA")
        return state._replace(cfa_register=register, expression=None)

    def _def_cfa_offset(self, state: MachineState, offset: int) -> MachineState:
        # DWARF does not allow this after an expression. Unwinders change the offset and keep the expression.
        if state.cfa_register is None and state.expression is None:
            raise CfiError("def_cfa_offset before any rule of the CFA")
        return state._replace(cfa_offset=signed_word(offset))

    def _def_cfa_offset_sf(self, state: MachineState, factored_offset: int) -> MachineState:
        return self._def_cfa_offset(state, factored_offset * self.cie.data_alignment)

    def _def_cfa_expression(self, state: MachineState, code: bytes) -> MachineState:
        # A register that follows has the old offset, for unwinders. It is the CFA's after expressions as `*(rsp+152)+8`
        # (libgcrypt), and not after a frame of vectors, whose size is a multiple of VG (clang).
        offset = state.cfa_offset if is_unscaled(code, self._arch.byte_order) else None
        return state._replace(cfa_offset=offset, expression=Expression(code, deref=False))

    # Register rule instructions, 6.4.2.3

    def _with(
        self, state: MachineState, register: int, ra: RegisterRule, fp: RegisterRule, sp: RegisterRule
    ) -> MachineState:
        """Return the state with another rule of a register, which may be two of RA, FP and SP, or none of them."""
        if register == self.cie.ra_register:
            state = state._replace(ra=ra)
        if register == self._arch.fp_register:
            return state._replace(fp=fp)
        return state._replace(sp=sp) if register == self._arch.sp_register else state

    def _set(self, state: MachineState, register: int, rule: RegisterRule) -> MachineState:
        if register == self._sign_register:
            return state._replace(sign_rule=self._signing_of(rule))
        return self._with(state, register, rule, rule, rule)

    def _undefined(self, state: MachineState, register: int) -> MachineState:
        return self._set(state, register, NoRule.UNDEFINED)

    def _same_value(self, state: MachineState, register: int) -> MachineState:
        if register != self.cie.ra_register:
            return self._set(state, register, NoRule.SAME_VALUE)
        return self._with(state, register, self._ra_same_value, NoRule.SAME_VALUE, NoRule.SAME_VALUE)

    def _offset(self, state: MachineState, register: int, factored_offset: int) -> MachineState:
        offset = signed_word(factored_offset * self.cie.data_alignment)
        return self._set(state, register, Rule(None, offset, deref=True))

    def _negative_offset(self, state: MachineState, register: int, factored_offset: int) -> MachineState:
        return self._offset(state, register, -factored_offset)

    def _val_offset(self, state: MachineState, register: int, factored_offset: int) -> MachineState:
        offset = signed_word(factored_offset * self.cie.data_alignment)
        return self._set(state, register, Rule(None, offset, deref=False))

    def _register(self, state: MachineState, register: int, holder: int) -> MachineState:
        return self._set(state, register, Rule(holder, 0, deref=False))

    def _expression(self, state: MachineState, register: int, code: bytes) -> MachineState:
        return self._set(state, register, Expression(code, deref=True))

    def _val_expression(self, state: MachineState, register: int, code: bytes) -> MachineState:
        return self._set(state, register, Expression(code, deref=False))

    def _restore(self, state: MachineState, register: int) -> MachineState:
        # A register that the CIE has not set has no rule again, and in a CIE any register: GNU as moves a .cfi_restore
        # that stands before the first advance into the CIE, and libgcc and readelf take it so.
        initial = self.initial
        if register == self._sign_register:
            return state._replace(sign_bits=initial.sign_bits, sign_rule=initial.sign_rule)
        return self._with(state, register, initial.ra, initial.fp, initial.sp)

    # Row state instructions, 6.4.2.4

    def _remember_state(self, state: MachineState) -> MachineState:
        # By its number, a stack of states compares and hashes in constant time at any depth.
        number = self._numbers.get(state)
        if number is None:
            self._remembered.append(state)
            number = self._numbers[state] = len(self._remembered)
        return state._replace(remembered=number)

    def _restore_state(self, state: MachineState) -> MachineState:
        if not state.remembered:
            raise CfiError("restore_state without a remembered state")
        return self._remembered[state.remembered - 1]

    # Instructions without effect on these rows

    def _without_effect(self, state: MachineState, *_operands: int) -> MachineState:
        """Skip DW_CFA_GNU_args_size, too: exception handlers need the size of pushed arguments, stack traces do not."""
        return state

    # Pointer authentication (AADWARF64, 4.4)

    def _signing_of(self, rule: RegisterRule) -> RaSigning:
        """Return what a rule of RA_SIGN_STATE says. Constants are all that AADWARF64 gives a meaning."""
        if isinstance(rule, Expression) and not rule.deref:
            with suppress(CfiError):
                value = classify(rule.code, self._arch.byte_order, starts_with_cfa=True)
                if value in (0, 1):
                    return RaSigning.SIGNED if value else RaSigning.NONE
        return RaSigning.UNKNOWN

    def _with_bits(self, state: MachineState, bits: int) -> MachineState:
        # AADWARF64 forbids to mix these instructions with rules of the register, and unwinders differ where they are.
        return state._replace(sign_bits=bits, sign_rule=None if state.sign_rule is None else RaSigning.UNKNOWN)

    def _negate_ra_state(self, state: MachineState) -> MachineState:
        # GCC before 8 called it DW_CFA_GNU_window_save, which has the same number.
        return self._with_bits(state, state.sign_bits ^ 1)

    def _negate_ra_state_with_pc(self, state: MachineState) -> MachineState:
        # Both bits, whatever they are, as LLVM's unwinder does.
        return self._with_bits(state, state.sign_bits ^ 3)

    def _set_ra_state(self, state: MachineState, signing: int, _distance: int) -> MachineState:
        # The distance to the signing instruction is needed only to check the signature.
        if signing > RaSigning.SIGNED_WITH_PC:
            raise CfiError(f"set_ra_state to {signing}, which is no state")
        return self._with_bits(state, _SIGNING.index(signing))

    _HANDLERS: ClassVar[dict[int, Handler]] = {
        d.DW_CFA_def_cfa: _def_cfa,
        d.DW_CFA_def_cfa_sf: _def_cfa_sf,
        d.DW_CFA_def_cfa_register: _def_cfa_register,
        d.DW_CFA_def_cfa_offset: _def_cfa_offset,
        d.DW_CFA_def_cfa_offset_sf: _def_cfa_offset_sf,
        d.DW_CFA_def_cfa_expression: _def_cfa_expression,
        d.DW_CFA_undefined: _undefined,
        d.DW_CFA_same_value: _same_value,
        d.DW_CFA_offset: _offset,
        d.DW_CFA_offset_extended: _offset,
        d.DW_CFA_offset_extended_sf: _offset,
        d.DW_CFA_GNU_negative_offset_extended: _negative_offset,
        d.DW_CFA_val_offset: _val_offset,
        d.DW_CFA_val_offset_sf: _val_offset,
        d.DW_CFA_register: _register,
        d.DW_CFA_expression: _expression,
        d.DW_CFA_val_expression: _val_expression,
        d.DW_CFA_restore: _restore,
        d.DW_CFA_restore_extended: _restore,
        d.DW_CFA_remember_state: _remember_state,
        d.DW_CFA_restore_state: _restore_state,
        d.DW_CFA_nop: _without_effect,
        d.DW_CFA_GNU_args_size: _without_effect,
    }
    #: Only AArch64 defines the instructions that sign the RA; for other machines these opcodes are unknown.
    _AARCH64_HANDLERS: ClassVar[dict[int, Handler]] = {
        d.DW_CFA_AARCH64_negate_ra_state: _negate_ra_state,
        d.DW_CFA_AARCH64_negate_ra_state_with_pc: _negate_ra_state_with_pc,
        d.DW_CFA_AARCH64_set_ra_state: _set_ra_state,
    }
