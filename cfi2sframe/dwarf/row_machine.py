# SPDX-License-Identifier: Apache-2.0
"""The row machine of DWARF 5, 6.4.2 and 6.4.3: a CIE and an FDE's instructions become a table of rows.

It follows CFA, RA, FP and SP; rules of other registers are read and dropped. RA's rules are those of the column that
the CIE names. Where that is not the ABI's and has no rule, RA is in the column's register, and rows say so.

Functions repeat parts of one another, and the same instructions in the same state lead to the same state. So a machine
remembers, for each of its states, the state to which each string of instructions has led: it interprets a string once
in a file, and looks it up the next time.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.expression import Expression, is_unscaled, signed_word, value_of
from cfi2sframe.dwarf.instructions import ADVANCES, Instruction, cut, read_instructions
from cfi2sframe.dwarf.numbers import Location, fixed_size, read_pointer
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RaSigning, RegisterRule, RowState, UnwindTable
from cfi2sframe.errors import CfiError

#: AArch64's pseudo-register RA_SIGN_STATE (AADWARF64, 4.1).
_RA_SIGN_STATE: Final = 34
#: The fields of a state that it is in.
_SIGN_FIELDS: Final = ("sign_bits", "sign_rule")
#: By the value of its two bits: "with the PC" means nothing where the RA is not signed.
_SIGNING: Final = (RaSigning.NONE, RaSigning.SIGNED, RaSigning.NONE, RaSigning.SIGNED_WITH_PC)
_SET_LOC: Final = bytes([d.DW_CFA_set_loc])


class MachineState(NamedTuple):
    """All that instructions have set so far.

    `cfa_register` and `cfa_offset` are the CFA's last ones. They stay while the CFA is an `expression`: unwinders keep
    them, and hand-written CFI builds on them. Without an offset, the CFA after an expression is not known.

    `remembered` is the number of the state that DW_CFA_remember_state has pushed last, from 1 on; that one has the
    number of the one below it.

    `sign_bits` is AArch64's RA_SIGN_STATE as its own instructions leave it: bit 0 is "signed", bit 1 "with the PC".
    `sign_rule` is the meaning of a rule of that register; None: it has none.
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
        cfa: CfaRule | None = self.expression
        if cfa is None and self.cfa_register is not None:
            cfa = NoCfa.UNKNOWN if self.cfa_offset is None else Rule(self.cfa_register, self.cfa_offset, deref=False)
        signing = _SIGNING[self.sign_bits] if self.sign_rule is None else self.sign_rule
        return RowState(cfa, self.ra, self.fp, self.sp, signing)


class _Reached(dict[bytes, int]):
    """A state and its row; maps strings of instructions without advances to the index of the state after them."""

    __slots__ = ("row", "state")

    def __init__(self, state: MachineState, row: RowState) -> None:
        super().__init__()
        self.state = state
        self.row = row


class RowMachine:
    """The row machine of one CIE.

    Raises `CfiError`, its offset counted from the CIE's first instruction, when the CIE's instructions are damaged.
    """

    def __init__(self, cie: DwarfCie, arch: Arch) -> None:
        self.cie = cie
        self._arch = arch
        self._sign_register = _RA_SIGN_STATE if arch.ra_may_be_signed else None
        self._effects = self._EFFECTS | (self._SIGNING_EFFECTS if arch.ra_may_be_signed else {})
        #: The fields of a state that a register's rule is in: two, where the CIE names FP or SP as the column of RA.
        self._fields = {arch.fp_register: ("fp",), arch.sp_register: ("sp",), self._sign_register: _SIGN_FIELDS}
        self._fields[cie.ra_register] = ("ra", *self._fields.get(cie.ra_register, ()))
        ra: RegisterRule = NoRule.UNSPECIFIED
        self._ra_same_value: RegisterRule = NoRule.SAME_VALUE
        if cie.ra_register != arch.ra_register:
            ra = self._ra_same_value = Rule(cie.ra_register, 0, deref=False)
        #: By index, not by reference: states lead to one another in circles.
        self._reached: list[_Reached] = []
        self._indices: dict[MachineState, int] = {}
        self._rows: dict[RowState, RowState] = {}
        self._chunks: dict[bytes, tuple[int, bytes]] = {}
        # In a CIE, DW_CFA_restore removes a rule.
        self.initial = MachineState(None, None, None, ra, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED)
        state = self.initial
        for instruction in self._read(cie.instructions):
            # An advance has no meaning in a CIE; its initial rules are those after the last instruction.
            if instruction.opcode not in ADVANCES and instruction.opcode != d.DW_CFA_set_loc:
                state = self._step(state, instruction)
        self.initial = state

    def run(self, instructions: bytes, location: Location | None = None) -> UnwindTable:
        """Interpret an FDE's instructions after the CIE's. Where several rows have the same start, the last one holds.

        Only chunks that are new in a state are interpreted: without this memo, libLLVM takes 3.1 times as long at -O0,
        and 1.6 times with all that is done by default. Raises `CfiError`, its offset counted from the first
        instruction, when one is unknown, truncated or out of context, or needs a `location` and has none.
        """
        current = self._reached[self._index_of(self.initial)]
        delta, row, position = 0, current.row, 0
        starts, rows = [0], [row]
        depends_on_location = False
        for chunk in cut(instructions) or self._cut_singly(instructions):
            advance, code = self._chunks.get(chunk) or self._split(chunk)
            after = current.get(code)
            if after is not None:
                current = self._reached[after]
            elif code[:1] == _SET_LOC:
                depends_on_location = True
                advance = self._set_loc(instructions, position, delta, location)
            else:
                current[code] = after = self._follow(current.state, code, position + len(chunk) - len(code))
                current = self._reached[after]
            delta += advance
            position += len(chunk)
            if current.row is row:
                continue
            row = current.row
            if starts[-1] == delta:
                del starts[-1], rows[-1]
            if not rows or rows[-1] is not row:
                starts.append(delta)
                rows.append(row)
        return UnwindTable(tuple(starts), tuple(rows), depends_on_location)

    def _cut_singly(self, instructions: bytes) -> Iterator[bytes]:
        return (instructions[single.offset : single.end] for single in self._read(instructions))

    def _split(self, chunk: bytes) -> tuple[int, bytes]:
        """Return the advance of a chunk in bytes of code, and the instructions after it."""
        first = next(self._read(chunk))
        is_advance = first.opcode in ADVANCES
        units, end = (first.operands[0], first.end) if is_advance else (0, 0)
        parts = self._chunks[chunk] = units * self.cie.code_alignment, chunk[end:]
        return parts

    def _follow(self, state: MachineState, code: bytes, position: int) -> int:
        """Return the index of the state after instructions without advances, at a position in their string."""
        for instruction in self._read(code):
            state = self._step(state, instruction, position)
        return self._index_of(state)

    def _index_of(self, state: MachineState) -> int:
        index = self._indices.setdefault(state, len(self._reached))
        if index == len(self._reached):
            # Equal rows of this machine are one object, so that `run` need not compare them by value.
            self._reached.append(_Reached(state, self._rows.setdefault(state.row, state.row)))
        return index

    def _read(self, instructions: bytes) -> Iterator[Instruction]:
        return read_instructions(instructions, self._arch.byte_order, fixed_size(self.cie.fde_encoding))

    def _step(self, state: MachineState, instruction: Instruction, position: int = 0) -> MachineState:
        """Return the state after an instruction that does not advance."""
        effect = self._effects.get(instruction.opcode)
        try:
            if effect is None:
                raise CfiError(f"unknown call frame instruction 0x{instruction.opcode:02x}")
            return effect(self, state, *instruction.operands)
        except CfiError as error:
            raise CfiError(error.reason, "", position + instruction.offset) from None

    def _set_loc(self, instructions: bytes, position: int, delta: int, location: Location | None) -> int:
        """Return the advance in bytes from `delta` of a DW_CFA_set_loc at a position."""
        try:
            if location is None:
                raise CfiError("set_loc outside a function")
            encoding = self.cie.fde_encoding
            if encoding == d.DW_EH_PE_aligned:
                # Its padding depends on the operand's address, and no compiler is known to emit it.
                raise CfiError("set_loc to an aligned pointer is not supported")
            vaddr, _ = read_pointer(instructions, position + 1, encoding, location.bases, location.instructions_vaddr)
            if vaddr - location.pc_begin_vaddr < delta:
                raise CfiError("set_loc goes back")
        except CfiError as error:
            raise CfiError(error.reason, "", position) from None
        return vaddr - location.pc_begin_vaddr - delta

    # CFA definition instructions, 6.4.2.2

    def _def_cfa(self, state: MachineState, register: int, offset: int) -> MachineState:
        return state._replace(cfa_register=register, cfa_offset=signed_word(offset), expression=None)

    def _def_cfa_sf(self, state: MachineState, register: int, units: int) -> MachineState:
        return self._def_cfa(state, register, units * self.cie.data_alignment)

    def _def_cfa_register(self, state: MachineState, register: int) -> MachineState:
        _expect_cfa(state, "def_cfa_register")
        return state._replace(cfa_register=register, expression=None)

    def _def_cfa_offset(self, state: MachineState, offset: int) -> MachineState:
        # DWARF does not allow this after an expression. Unwinders change the offset and keep the expression.
        _expect_cfa(state, "def_cfa_offset")
        return state._replace(cfa_offset=signed_word(offset))

    def _def_cfa_offset_sf(self, state: MachineState, units: int) -> MachineState:
        return self._def_cfa_offset(state, units * self.cie.data_alignment)

    def _def_cfa_expression(self, state: MachineState, code: bytes) -> MachineState:
        # A register that follows has the old offset, for unwinders. It is the CFA's after expressions as
        # `*(rsp+152)+8` (libgcrypt), and not after a frame of vectors, whose size is a multiple of VG (clang).
        offset = state.cfa_offset if is_unscaled(code, self._arch.byte_order) else None
        return state._replace(cfa_offset=offset, expression=Expression(code, deref=False))

    # Register rule instructions, 6.4.2.3

    def _undefined(self, state: MachineState, register: int) -> MachineState:
        return self._set(state, register, NoRule.UNDEFINED)

    def _same_value(self, state: MachineState, register: int) -> MachineState:
        return self._set(state, register, NoRule.SAME_VALUE)

    def _offset(self, state: MachineState, register: int, units: int) -> MachineState:
        return self._set(state, register, Rule(None, signed_word(units * self.cie.data_alignment), deref=True))

    def _negative_offset(self, state: MachineState, register: int, units: int) -> MachineState:
        return self._offset(state, register, -units)

    def _val_offset(self, state: MachineState, register: int, units: int) -> MachineState:
        return self._set(state, register, Rule(None, signed_word(units * self.cie.data_alignment), deref=False))

    def _register(self, state: MachineState, register: int, holder: int) -> MachineState:
        return self._set(state, register, Rule(holder, 0, deref=False))

    def _expression(self, state: MachineState, register: int, code: bytes) -> MachineState:
        return self._set(state, register, Expression(code, deref=True))

    def _val_expression(self, state: MachineState, register: int, code: bytes) -> MachineState:
        return self._set(state, register, Expression(code, deref=False))

    def _restore(self, state: MachineState, register: int) -> MachineState:
        # A register that the CIE has not set has no rule again, and in a CIE any register: GNU as moves a .cfi_restore
        # that stands before the first advance into the CIE, and libgcc and readelf take it so.
        fields = self._fields.get(register, ())
        return state._replace(**{name: getattr(self.initial, name) for name in fields})

    def _set(self, state: MachineState, register: int, rule: RegisterRule) -> MachineState:
        if register == self._sign_register:
            return state._replace(sign_rule=self._signing_of(rule))
        changes: dict[str, Any] = dict.fromkeys(self._fields.get(register, ()), rule)
        if rule is NoRule.SAME_VALUE and "ra" in changes:
            changes["ra"] = self._ra_same_value
        return state._replace(**changes)

    # Row state instructions, 6.4.2.4; padding

    def _remember_state(self, state: MachineState) -> MachineState:
        # By its number, a stack of states compares and hashes in constant time at any depth.
        return state._replace(remembered=self._index_of(state) + 1)

    def _restore_state(self, state: MachineState) -> MachineState:
        if not state.remembered:
            raise CfiError("restore_state without a remembered state")
        return self._reached[state.remembered - 1].state

    def _nothing(self, state: MachineState, *_operands: int) -> MachineState:
        # DW_CFA_GNU_args_size tells exception handlers the size of pushed arguments; stack traces do not need it.
        return state

    # Pointer authentication (AADWARF64, 4.4)

    def _signing_of(self, rule: RegisterRule) -> RaSigning:
        """Return the meaning of a rule of RA_SIGN_STATE. AADWARF64 gives one only to constants."""
        if isinstance(rule, Expression) and not rule.deref:
            value = value_of(rule.code, self._arch.byte_order, starts_with_cfa=True)
            if value in (0, 1):
                return RaSigning.SIGNED if value else RaSigning.NONE
        return RaSigning.UNKNOWN

    def _set_ra_state(self, state: MachineState, signing: int, _distance: int) -> MachineState:
        # The distance to the signing instruction is needed only to check the signature.
        if signing > RaSigning.SIGNED_WITH_PC:
            raise CfiError(f"set_ra_state to {signing}, which is no state")
        return _with_sign_bits(state, _SIGNING.index(RaSigning(signing)))

    def _negate_ra_state(self, state: MachineState) -> MachineState:
        # GCC before 8 called it DW_CFA_GNU_window_save, which has the same number.
        return _with_sign_bits(state, state.sign_bits ^ 1)

    def _negate_ra_state_with_pc(self, state: MachineState) -> MachineState:
        # It negates both bits, whatever they are, as LLVM's unwinder does.
        return _with_sign_bits(state, state.sign_bits ^ 3)

    #: By opcode, functions of a state and the instruction's operands that return the state after it.
    _EFFECTS: ClassVar[dict[int, Callable[..., MachineState]]] = {
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
        d.DW_CFA_nop: _nothing,
        d.DW_CFA_GNU_args_size: _nothing,
    }
    #: Only AArch64 defines these.
    _SIGNING_EFFECTS: ClassVar[dict[int, Callable[..., MachineState]]] = {
        d.DW_CFA_AARCH64_set_ra_state: _set_ra_state,
        d.DW_CFA_AARCH64_negate_ra_state: _negate_ra_state,
        d.DW_CFA_AARCH64_negate_ra_state_with_pc: _negate_ra_state_with_pc,
    }


def _expect_cfa(state: MachineState, name: str) -> None:
    if state.cfa_register is None and state.expression is None:
        raise CfiError(f"{name} before any rule of the CFA")


def _with_sign_bits(state: MachineState, bits: int) -> MachineState:
    # AADWARF64 forbids to mix these instructions with rules of the register, and unwinders differ where they are.
    return state._replace(sign_bits=bits, sign_rule=None if state.sign_rule is None else RaSigning.UNKNOWN)
