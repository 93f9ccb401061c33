# SPDX-License-Identifier: Apache-2.0
"""Call frame instructions as GNU as carries them out: how each changes the current row, and which drop the function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import read_sleb, read_uleb
from cfi2sframe.errors import CfiError
from cfi2sframe.gnu.rows import NOWHERE, GasRow, GasTarget, Saved

if TYPE_CHECKING:
    from cfi2sframe.dwarf.entries import DwarfCie

_DW_OP_BREG6: Final = 0x76
_DW_OP_DEREF: Final = 0x06


class GiveUp(Exception):  # noqa: N818 - control flow between two modules, never an error
    """The assembler drops the function: it writes no SFrame FDE for it."""


class GasState(NamedTuple):
    """The assembler's state between two instructions.

    `row` is the current row, None before the first; `is_new` is true until a directive changes it. `first` and `last`
    are the rows emitted first and last, `remembered` is that of `.cfi_remember_state`. `flexible`: some directive needs
    flexible rows.
    """

    row: GasRow | None = None
    is_new: bool = True
    last: GasRow | None = None
    first: GasRow | None = None
    remembered: GasRow | None = None
    flexible: bool = False


class Translation:
    """Carries out one chunk of instructions, which has no advance, on a state."""

    def __init__(self, gas: GasTarget, cie: DwarfCie, state: GasState) -> None:
        self.gas = gas
        self.arch = gas.arch
        self.cie = cie
        self.state = state
        self.code = b""
        self.position = 0

    def run(self, code: bytes) -> GasState:
        """Return the state after the instructions. Raises `GiveUp`, or `CfiError` when they are damaged."""
        self.code, self.position = code, 0
        while self.position < len(code):
            opcode = code[self.position]
            self.position += 1
            if opcode >= d.DW_CFA_restore:
                self._restore(opcode & 0x3F)
            elif opcode >= d.DW_CFA_offset:
                self._offset(opcode & 0x3F, self._uleb() * self.cie.data_alignment)
            elif opcode >= d.DW_CFA_advance_loc:
                raise CfiError("an advance among the initial instructions")
            else:
                self._execute(opcode)
        return self.state

    # Operands and changes

    def _uleb(self) -> int:
        value, self.position = read_uleb(self.code, self.position)
        return value

    def _sleb(self) -> int:
        value, self.position = read_sleb(self.code, self.position)
        return value

    def _factored(self, *, is_signed: bool) -> int:
        return (self._sleb() if is_signed else self._uleb()) * self.cie.data_alignment

    def _block(self) -> bytes:
        size = self._uleb()
        self.position += size
        return self.code[self.position - size : self.position]

    @property
    def row(self) -> GasRow:
        """The current row; an empty one before the first."""
        return self.state.row or GasRow()

    def _set(self, row: GasRow) -> None:
        self.state = self.state._replace(row=row, is_new=False)

    # Instructions

    def _execute(self, opcode: int) -> None:
        match opcode:
            case d.DW_CFA_nop:
                pass
            case d.DW_CFA_def_cfa | d.DW_CFA_def_cfa_sf:
                register = self._uleb()
                self._def_cfa(register, self._uleb() if opcode == d.DW_CFA_def_cfa else self._factored(is_signed=True))
            case d.DW_CFA_def_cfa_register:
                last = self.state.last
                self._def_cfa(self._uleb(), self.row.cfa_offset if last is None else last.cfa_offset)
            case d.DW_CFA_def_cfa_offset | d.DW_CFA_def_cfa_offset_sf:
                self._def_cfa_offset(
                    self._uleb() if opcode == d.DW_CFA_def_cfa_offset else self._factored(is_signed=True)
                )
            case d.DW_CFA_offset_extended | d.DW_CFA_offset_extended_sf:
                register = self._uleb()
                self._offset(register, self._factored(is_signed=opcode == d.DW_CFA_offset_extended_sf))
            case d.DW_CFA_val_offset | d.DW_CFA_val_offset_sf:
                register = self._uleb()
                self._val_offset(register, self._factored(is_signed=opcode == d.DW_CFA_val_offset_sf))
            case d.DW_CFA_restore_extended:
                self._restore(self._uleb())
            case d.DW_CFA_undefined:
                self._undefined(self._uleb())
            case d.DW_CFA_same_value:
                self._same_value(self._uleb())
            case d.DW_CFA_register:
                register = self._uleb()
                self._register(register, self._uleb())
            case d.DW_CFA_remember_state:
                self._remember()
            case d.DW_CFA_restore_state:
                self._restore_state()
            case d.DW_CFA_AARCH64_negate_ra_state:
                self._negate_ra_state()
            case _:
                self._escape(opcode)

    def _check_range(self, offset: int) -> None:
        stored = (offset - self.arch.cfa_offset_bias) // self.arch.cfa_offset_scale
        if self.gas.version >= 3 and not -(1 << 31) <= stored < 1 << 31:
            raise GiveUp

    def _def_cfa(self, register: int, offset: int) -> None:
        self._check_range(offset)
        if register not in (self.arch.sp_register, self.arch.fp_register):
            if self.gas.has_flexible_rows:
                self.state = self.state._replace(flexible=True)
            elif self.gas.version > 1:
                raise GiveUp
        self._set(self.row._replace(cfa_register=register, cfa_offset=offset))

    def _def_cfa_offset(self, offset: int) -> None:
        register = self.row.cfa_register
        is_usual = register in (self.arch.sp_register, self.arch.fp_register)
        if register is None or not (is_usual or self.gas.version >= 3):
            raise GiveUp
        self._check_range(offset)
        self._set(self.row._replace(cfa_offset=offset))

    def _offset(self, register: int, offset: int) -> None:
        row = self.row
        if register == self.arch.fp_register:
            self._set(row._replace(fp=Saved("stack", offset)))
        elif register == self.arch.ra_register:
            if self.gas.tracks_ra:
                self._set(row._replace(ra=Saved("stack", offset), ra_is_undefined=False))
            elif offset != self.arch.fixed_ra_offset:
                self._move_ra(offset)
            elif self.gas.version >= 3:
                self._set(row._replace(ra=NOWHERE))

    def _move_ra(self, offset: int) -> None:
        """Put RA on the stack where the ABI does not have it; before version 3 the assembler ignores that."""
        if self.gas.has_flexible_rows:
            self.state = self.state._replace(flexible=True)
            self._set(self.row._replace(ra=Saved("stack", offset), ra_is_undefined=False))

    def _restore(self, register: int) -> None:
        row, source = self.row, self.state.first or self.row
        if register == self.arch.fp_register:
            # The assembler restores kind and offset of the rule, and leaves its register.
            self._set(row._replace(fp=source.fp._replace(register=row.fp.register)))
        elif register == self.arch.ra_register and self.gas.tracks_ra:
            ra = source.ra._replace(register=row.ra.register)
            self._set(row._replace(ra=ra, ra_is_undefined=source.ra_is_undefined))

    def _undefined(self, register: int) -> None:
        if self.gas.version < 3:
            return
        if register in (self.arch.fp_register, self.arch.sp_register):
            raise GiveUp
        if register == self.arch.ra_register:
            self._set(self.row._replace(ra_is_undefined=True))

    def _same_value(self, register: int) -> None:
        if self.gas.version < 3:
            return
        if register == self.arch.fp_register:
            self._set(self.row._replace(fp=NOWHERE))
        elif register == self.arch.ra_register and self.gas.tracks_ra:
            self._set(self.row._replace(ra=NOWHERE, ra_is_undefined=False))

    def _register(self, register: int, source: int) -> None:
        arch, row = self.arch, self.row
        if self.gas.has_flexible_rows and register in (arch.fp_register, arch.ra_register):
            saved = Saved("register", 0, source)
            self.state = self.state._replace(flexible=True)
            if register == arch.fp_register:
                self._set(row._replace(fp=saved))
            else:
                self._set(row._replace(ra=saved, ra_is_undefined=False))
        elif arch.pads_ra and self.gas.version == 2:
            self._register_as_offset(register, source)
        elif self.gas.version < 2 or self._needs_rule(register):
            raise GiveUp

    def _needs_rule(self, register: int) -> bool:
        """Whether the assembler drops a function that has this register in another one; it ignores most registers."""
        arch = self.arch
        if register == arch.ra_register:
            return self.gas.tracks_ra or self.gas.version >= 3
        return register == arch.fp_register or (
            register == arch.sp_register and self.gas.version >= 3 and not arch.pads_ra
        )

    def _register_as_offset(self, register: int, source: int) -> None:
        saved = Saved("stack", source << 1 | 1)
        if register == self.arch.fp_register:
            self._set(self.row._replace(fp=saved))
        elif register == self.arch.ra_register:
            self._set(self.row._replace(ra=saved, ra_is_undefined=False))

    def _remember(self) -> None:
        remembered = self.state.row if self.gas.version >= 3 else self.state.last
        if remembered is None:
            raise GiveUp
        self.state = self.state._replace(remembered=remembered)

    def _restore_state(self) -> None:
        if self.state.remembered is None:
            raise GiveUp
        self._set(self.state.remembered)

    def _negate_ra_state(self) -> None:
        if self.gas.version > 1 and not self.arch.ra_may_be_signed:
            raise GiveUp
        self._set(self.row)

    def _val_offset(self, register: int, offset: int) -> None:
        arch = self.arch
        if register == arch.fp_register or (self.gas.tracks_ra and register == arch.ra_register):
            raise GiveUp
        looks_at_sp = self.gas.version >= 3 or arch.pads_ra
        if register == arch.sp_register and looks_at_sp and offset != arch.sp_offset_from_cfa:
            raise GiveUp

    # Instructions without a directive, which assembly spells with .cfi_escape

    def _escape(self, opcode: int) -> None:
        if self.gas.version < 3:
            raise GiveUp
        match opcode:
            case d.DW_CFA_def_cfa_expression:
                self._cfa_expression(self._block())
            case d.DW_CFA_expression:
                register = self._uleb()
                self._expression(register, self._block())
            case d.DW_CFA_GNU_args_size:
                size = self._uleb()
                if size and (size > 0x7F or self.row.cfa_register != self.arch.fp_register):
                    raise GiveUp
            case _:
                raise GiveUp

    def _cfa_expression(self, block: bytes) -> None:
        is_known = len(block) == 3 and block[0] == _DW_OP_BREG6 and block[2] == _DW_OP_DEREF
        if not is_known or self.gas.tracks_ra:
            raise GiveUp
        self.state = self.state._replace(flexible=True)
        offset = read_sleb(block, 1)[0]
        self._set(self.row._replace(cfa_register=self.arch.fp_register, cfa_offset=offset))

    def _expression(self, register: int, block: bytes) -> None:
        arch = self.arch
        if len(block) != 2 or register > 0x7F:
            raise GiveUp
        if register == arch.fp_register:
            is_frame = block[0] == _DW_OP_BREG6 and not self.gas.tracks_ra
            self.state = self.state._replace(flexible=True)
            saved = Saved("register", read_sleb(block, 1)[0], arch.fp_register if is_frame else None)
            self._set(self.row._replace(fp=saved))
        elif register in (arch.sp_register, self.row.cfa_register, arch.ra_register if self.gas.tracks_ra else None):
            raise GiveUp
