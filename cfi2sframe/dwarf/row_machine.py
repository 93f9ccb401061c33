# SPDX-License-Identifier: Apache-2.0
"""The row machine of DWARF 5, 6.4.2 and 6.4.3: a CIE and an FDE's instructions become a table of rows.

It follows CFA, RA, FP and SP; rules of other registers are read and dropped. RA's rules are those of the column that
the CIE names. Where that is not the ABI's and has no rule, RA is in the column's register, and rows say so. This is the
plain form, one handler for each instruction, and the reference: `program_cache` returns the same tables faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.instructions import ADVANCES, read_instructions
from cfi2sframe.dwarf.pointer import fixed_size, read_pointer
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
    TableBuilder,
    UnwindTable,
    ValueAtCfa,
)
from cfi2sframe.elf.constants import EM_AARCH64
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.instructions import Instruction
    from cfi2sframe.dwarf.pointer import PointerBases
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule

    #: Executes one instruction, given its operands.
    Handler: TypeAlias = Callable[..., None]
    #: A column of the table: the register that the CIE names as RA, the ABI's FP and SP.
    Column: TypeAlias = Literal["ra", "fp", "sp"]


class Location(NamedTuple):
    """What DW_CFA_set_loc needs: the addresses of the function and of the instructions, and the bases of pointers."""

    pc_begin_vaddr: int
    instructions_vaddr: int
    bases: PointerBases


class RememberedState:
    """A state that DW_CFA_remember_state has pushed; its own `stack` is the rest of the stack. Compared by identity."""

    __slots__ = ("state",)

    def __init__(self, state: RegisterState) -> None:
        self.state = state


class RegisterState(NamedTuple):
    """Everything that instructions have set so far.

    While `cfa_expression` is the CFA's rule, the register and offset of an earlier rule are kept: unwinders keep them,
    and hand-written CFI builds on them. `cfa_register` None: there was no such rule. `stack` is the state remembered
    last.
    """

    cfa_register: int | None
    cfa_offset: int
    cfa_expression: bytes | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    signing: RaSigning
    stack: RememberedState | None

    @property
    def row_state(self) -> RowState:
        """The rules of a row that is made in this state."""
        cfa: CfaRule | None = None
        if self.cfa_expression is not None:
            cfa = CfaExpression(self.cfa_expression)
        elif self.cfa_register is not None:
            cfa = RegisterOffset(self.cfa_register, self.cfa_offset)
        return RowState(cfa, self.ra, self.fp, self.sp, self.signing)


def run(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> UnwindTable:
    """Interpret an FDE's instructions after its CIE's. Raises what `RowMachine` and `RowMachine.run` raise."""
    return RowMachine(cie, arch).run(instructions, location)


_HANDLERS: Final[dict[int, Handler]] = {}
#: Only AArch64 defines the instructions that sign the RA; for other machines these opcodes are unknown.
_AARCH64_HANDLERS: Final[dict[int, Handler]] = {}


def _handles(*opcodes: int) -> Callable[[Handler], Handler]:
    """Make a method the handler of opcodes."""

    def enter(handler: Handler) -> Handler:
        for opcode in opcodes:
            _HANDLERS[opcode] = _AARCH64_HANDLERS[opcode] = handler
        return handler

    return enter


def _handles_on_aarch64(opcode: int) -> Callable[[Handler], Handler]:
    """Make a method the handler of an opcode that AArch64 alone defines."""

    def enter(handler: Handler) -> Handler:
        _AARCH64_HANDLERS[opcode] = handler
        return handler

    return enter


class RowMachine:
    """The machine of one CIE: its factors, its initial rules, and the state that instructions change.

    Raises `CfiError`, its offset counted from the CIE's first instruction, when the CIE's instructions are damaged.
    """

    def __init__(self, cie: DwarfCie, arch: Arch) -> None:
        self.cie = cie
        self._byte_order = arch.byte_order
        self._pointer_size = fixed_size(cie.fde_encoding)
        self._handlers: dict[int, Handler] = _AARCH64_HANDLERS if arch.elf_machine == EM_AARCH64 else _HANDLERS
        self._columns_of: dict[int, tuple[Column, ...]] = {arch.fp_register: ("fp",), arch.sp_register: ("sp",)}
        self._columns_of[cie.ra_register] = (*self._columns_of.get(cie.ra_register, ()), "ra")
        #: RA's rule where the CFI has none, and where the register of its column keeps its value.
        self._ra_unspecified: RegisterRule = NoRule.UNSPECIFIED
        self._ra_same_value: RegisterRule = NoRule.SAME_VALUE
        if cie.ra_register != arch.ra_register:
            self._ra_unspecified = self._ra_same_value = InRegister(cie.ra_register)
        self._cfa_register: int | None = None
        self._cfa_offset = 0
        self._cfa_expression: bytes | None = None
        #: The rules that DW_CFA_restore brings back: in a CIE none, later those that the CIE gave.
        self._initial_rules: dict[Column, RegisterRule] = {
            "ra": self._ra_unspecified,
            "fp": NoRule.UNSPECIFIED,
            "sp": NoRule.UNSPECIFIED,
        }
        self._rules = dict(self._initial_rules)
        self._signing = RaSigning.NONE
        self._stack: RememberedState | None = None
        self._remembered: dict[RegisterState, RememberedState] = {}
        for instruction in self.read(cie.instructions):
            # An advance has no meaning in a CIE; its initial rules are those after the last instruction.
            if instruction.opcode not in ADVANCES and instruction.opcode != d.DW_CFA_set_loc:
                self._execute(instruction)
        self._initial_rules = dict(self._rules)
        self.initial_state = self._state()

    def run(self, instructions: bytes, location: Location | None = None) -> UnwindTable:
        """Interpret an FDE's instructions, starting with the CIE's rules.

        Where several rows have the same start, the last of them holds. Raises `CfiError`, its offset counted from the
        first instruction, when one is unknown, truncated or out of context, or needs a `location` and has none.
        """
        self._set_state(self.initial_state)
        rows = TableBuilder()
        delta, depends_on_location = 0, False
        for instruction in self.read(instructions):
            if instruction.opcode in ADVANCES:
                rows.add(delta, self._state().row_state)
                (units,) = instruction.operands
                delta += int(units) * self.cie.code_alignment
            elif instruction.opcode == d.DW_CFA_set_loc:
                rows.add(delta, self._state().row_state)
                delta, depends_on_location = self._set_loc(instructions, instruction, delta, location), True
            else:
                self._execute(instruction)
        rows.add(delta, self._state().row_state)
        return rows.table(depends_on_location=depends_on_location)

    def step(self, state: RegisterState, instructions: Iterable[Instruction]) -> RegisterState:
        """Return the state after instructions without advances, starting with `state`.

        Raises `CfiError` as `run` does; advances are unknown instructions here.
        """
        self._set_state(state)
        for instruction in instructions:
            self._execute(instruction)
        return self._state()

    def _state(self) -> RegisterState:
        rules = self._rules
        return RegisterState(
            self._cfa_register,
            self._cfa_offset,
            self._cfa_expression,
            rules["ra"],
            rules["fp"],
            rules["sp"],
            self._signing,
            self._stack,
        )

    def _set_state(self, state: RegisterState) -> None:
        self._cfa_register, self._cfa_offset = state.cfa_register, state.cfa_offset
        self._cfa_expression = state.cfa_expression
        self._rules = {"ra": state.ra, "fp": state.fp, "sp": state.sp}
        self._signing = state.signing
        self._stack = state.stack

    def read(self, instructions: bytes) -> Iterator[Instruction]:
        """Yield the instructions of a string. Raises `CfiError` when one is unknown or truncated."""
        return read_instructions(instructions, self._byte_order, self._pointer_size)

    def _execute(self, instruction: Instruction) -> None:
        handler = self._handlers.get(instruction.opcode)
        if handler is None:
            raise CfiError(f"unknown call frame instruction 0x{instruction.opcode:02x}", "", instruction.offset)
        try:
            handler(self, *instruction.operands)
        except CfiError as error:
            raise CfiError(error.reason, "", instruction.offset) from None

    # Row creation instructions, 6.4.2.1

    def _set_loc(self, instructions: bytes, instruction: Instruction, delta: int, location: Location | None) -> int:
        """Return the new location: bytes from the function's start."""
        if location is None:
            raise CfiError("set_loc outside a function", "", instruction.offset)
        encoding = self.cie.fde_encoding
        if encoding == d.DW_EH_PE_aligned:
            # Its padding depends on the operand's address, and no compiler is known to emit it.
            raise CfiError("set_loc to an aligned pointer is not supported", "", instruction.offset)
        position = instruction.offset + 1
        try:
            vaddr, _ = read_pointer(instructions, position, encoding, location.bases, location.instructions_vaddr)
        except CfiError as error:
            raise CfiError(error.reason, "", instruction.offset) from None
        if vaddr - location.pc_begin_vaddr < delta:
            raise CfiError("set_loc goes back", "", instruction.offset)
        return vaddr - location.pc_begin_vaddr

    # CFA definition instructions, 6.4.2.2

    @_handles(d.DW_CFA_def_cfa)
    def _def_cfa(self, register: int, offset: int) -> None:
        self._cfa_register, self._cfa_offset, self._cfa_expression = register, offset, None

    @_handles(d.DW_CFA_def_cfa_sf)
    def _def_cfa_sf(self, register: int, factored_offset: int) -> None:
        self._def_cfa(register, factored_offset * self.cie.data_alignment)

    @_handles(d.DW_CFA_def_cfa_register)
    def _def_cfa_register(self, register: int) -> None:
        if self._cfa_register is None:
            raise CfiError("def_cfa_register before any rule of the CFA")
        self._def_cfa(register, self._cfa_offset)

    @_handles(d.DW_CFA_def_cfa_offset)
    def _def_cfa_offset(self, offset: int) -> None:
        # DWARF does not allow this after an expression. Unwinders change the offset and keep the expression.
        if self._cfa_register is None and self._cfa_expression is None:
            raise CfiError("def_cfa_offset before any rule of the CFA")
        self._cfa_offset = offset

    @_handles(d.DW_CFA_def_cfa_offset_sf)
    def _def_cfa_offset_sf(self, factored_offset: int) -> None:
        self._def_cfa_offset(factored_offset * self.cie.data_alignment)

    @_handles(d.DW_CFA_def_cfa_expression)
    def _def_cfa_expression(self, expression: bytes) -> None:
        self._cfa_expression = expression

    # Register rule instructions, 6.4.2.3

    def _set_rule(self, register: int, rule: RegisterRule) -> None:
        for column in self._columns_of.get(register, ()):
            self._rules[column] = rule

    @_handles(d.DW_CFA_undefined)
    def _undefined(self, register: int) -> None:
        self._set_rule(register, NoRule.UNDEFINED)

    @_handles(d.DW_CFA_same_value)
    def _same_value(self, register: int) -> None:
        for column in self._columns_of.get(register, ()):
            self._rules[column] = self._ra_same_value if column == "ra" else NoRule.SAME_VALUE

    @_handles(d.DW_CFA_offset, d.DW_CFA_offset_extended, d.DW_CFA_offset_extended_sf)
    def _offset(self, register: int, factored_offset: int) -> None:
        self._set_rule(register, AtCfa(factored_offset * self.cie.data_alignment))

    @_handles(d.DW_CFA_GNU_negative_offset_extended)
    def _negative_offset(self, register: int, factored_offset: int) -> None:
        self._offset(register, -factored_offset)

    @_handles(d.DW_CFA_val_offset, d.DW_CFA_val_offset_sf)
    def _val_offset(self, register: int, factored_offset: int) -> None:
        self._set_rule(register, ValueAtCfa(factored_offset * self.cie.data_alignment))

    @_handles(d.DW_CFA_register)
    def _register(self, register: int, holder: int) -> None:
        self._set_rule(register, InRegister(holder))

    @_handles(d.DW_CFA_expression)
    def _expression(self, register: int, expression: bytes) -> None:
        self._set_rule(register, AtExpression(expression))

    @_handles(d.DW_CFA_val_expression)
    def _val_expression(self, register: int, expression: bytes) -> None:
        self._set_rule(register, IsExpression(expression))

    @_handles(d.DW_CFA_restore, d.DW_CFA_restore_extended)
    def _restore(self, register: int) -> None:
        # A register that the CIE has not set has no rule again, and in a CIE any register: GNU as moves a .cfi_restore
        # that stands before the first advance into the CIE, and libgcc and readelf take it so.
        for column in self._columns_of.get(register, ()):
            self._rules[column] = self._initial_rules[column]

    # Row state instructions, 6.4.2.4

    @_handles(d.DW_CFA_remember_state)
    def _remember_state(self) -> None:
        # Equal stacks are one object: states then compare and hash in constant time at any depth.
        state = self._state()
        stack = self._remembered.get(state)
        if stack is None:
            stack = self._remembered[state] = RememberedState(state)
        self._stack = stack

    @_handles(d.DW_CFA_restore_state)
    def _restore_state(self) -> None:
        if self._stack is None:
            raise CfiError("restore_state without a remembered state")
        self._set_state(self._stack.state)

    # Instructions without effect on these rows

    @_handles(d.DW_CFA_nop)
    def _nop(self) -> None:
        pass

    @_handles(d.DW_CFA_GNU_args_size)
    def _args_size(self, size: int) -> None:
        """Skip the size of pushed arguments: exception handlers need it, stack traces do not."""

    # Pointer authentication (AADWARF64, 4.4)

    @_handles_on_aarch64(d.DW_CFA_AARCH64_negate_ra_state)
    def _negate_ra_state(self) -> None:
        # GCC before 8 called it DW_CFA_GNU_window_save, which has the same number.
        self._signing = RaSigning.SIGNED if self._signing is RaSigning.NONE else RaSigning.NONE

    @_handles_on_aarch64(d.DW_CFA_AARCH64_negate_ra_state_with_pc)
    def _negate_ra_state_with_pc(self) -> None:
        # The instruction negates two bits, "signed" and "with the PC"; the second matters only if the first is set.
        with_pc = self._signing is RaSigning.SIGNED_WITH_PC
        self._signing = RaSigning.NONE if with_pc else RaSigning.SIGNED_WITH_PC

    @_handles_on_aarch64(d.DW_CFA_AARCH64_set_ra_state)
    def _set_ra_state(self, signing: int, _distance: int) -> None:
        # The distance to the signing instruction is needed only to check the signature.
        if signing > max(RaSigning):
            raise CfiError(f"set_ra_state to {signing}, which is no state")
        self._signing = RaSigning(signing)
