# SPDX-License-Identifier: Apache-2.0
"""Every call frame instruction of DWARF 5, GNU and AArch64 as a function that returns a record of it.

Operands are given as they are encoded: "factored" values are multiplied by the CIE's code or data alignment
factor by their readers.
"""

from typing import Literal, NamedTuple, TypeAlias


def uleb128(value: int) -> bytes:
    """Return the shortest ULEB128 of a number that is not negative."""
    if value < 0:
        message = f"ULEB128 of the negative number {value}"
        raise ValueError(message)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sleb128(value: int) -> bytes:
    """Return the shortest SLEB128 of a number."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


# --- Instructions -----------------------------------------------------------------------------------------

OperandKind: TypeAlias = Literal["uleb", "sleb", "u8", "u16", "u32", "u64", "address"]


class Operand(NamedTuple):
    """One number of an instruction and the way it is written; "address" uses the CIE's FDE encoding."""

    kind: OperandKind
    value: int


class Instruction(NamedTuple):
    """One call frame instruction: the opcode byte, its numbers, and the bytes after them (expressions)."""

    opcode: int
    operands: tuple[Operand, ...] = ()
    tail: bytes = b""


def _plain(opcode: int, *operands: tuple[OperandKind, int], tail: bytes = b"") -> Instruction:
    return Instruction(opcode, tuple(Operand(kind, value) for kind, value in operands), tail)


def _primary(opcode: int, low_bits: int, *operands: tuple[OperandKind, int]) -> Instruction:
    if not 0 <= low_bits < 0x40:
        message = f"{low_bits} does not fit in the six bits of opcode {opcode:#x}"
        raise ValueError(message)
    return _plain(opcode | low_bits, *operands)


def nop() -> Instruction:
    """DW_CFA_nop."""
    return _plain(0x00)


def set_loc(vaddr: int) -> Instruction:
    """DW_CFA_set_loc to an absolute address, written with the CIE's FDE encoding."""
    return _plain(0x01, ("address", vaddr))


def advance0(factored: int) -> Instruction:
    """DW_CFA_advance_loc, 0 to 63 code units."""
    return _primary(0x40, factored)


def advance1(factored: int) -> Instruction:
    """DW_CFA_advance_loc1."""
    return _plain(0x02, ("u8", factored))


def advance2(factored: int) -> Instruction:
    """DW_CFA_advance_loc2."""
    return _plain(0x03, ("u16", factored))


def advance4(factored: int) -> Instruction:
    """DW_CFA_advance_loc4."""
    return _plain(0x04, ("u32", factored))


def advance8(factored: int) -> Instruction:
    """DW_CFA_MIPS_advance_loc8."""
    return _plain(0x1D, ("u64", factored))


def advance(factored: int) -> Instruction:
    """Advance by a number of code units in the smallest form that holds it."""
    for limit, form in ((0x40, advance0), (0x100, advance1), (0x10000, advance2), (1 << 32, advance4)):
        if factored < limit:
            return form(factored)
    return advance8(factored)


def offset(register: int, factored: int) -> Instruction:
    """DW_CFA_offset, register 0 to 63."""
    return _primary(0x80, register, ("uleb", factored))


def offset_extended(register: int, factored: int) -> Instruction:
    """DW_CFA_offset_extended."""
    return _plain(0x05, ("uleb", register), ("uleb", factored))


def offset_extended_sf(register: int, factored: int) -> Instruction:
    """DW_CFA_offset_extended_sf."""
    return _plain(0x11, ("uleb", register), ("sleb", factored))


def gnu_negative_offset_extended(register: int, factored: int) -> Instruction:
    """DW_CFA_GNU_negative_offset_extended: the operand is subtracted."""
    return _plain(0x2F, ("uleb", register), ("uleb", factored))


def restore(register: int) -> Instruction:
    """DW_CFA_restore, register 0 to 63."""
    return _primary(0xC0, register)


def restore_extended(register: int) -> Instruction:
    """DW_CFA_restore_extended."""
    return _plain(0x06, ("uleb", register))


def undefined(register: int) -> Instruction:
    """DW_CFA_undefined."""
    return _plain(0x07, ("uleb", register))


def same_value(register: int) -> Instruction:
    """DW_CFA_same_value."""
    return _plain(0x08, ("uleb", register))


def register(saved: int, holder: int) -> Instruction:
    """DW_CFA_register: the caller's `saved` is in `holder`."""
    return _plain(0x09, ("uleb", saved), ("uleb", holder))


def remember_state() -> Instruction:
    """DW_CFA_remember_state."""
    return _plain(0x0A)


def restore_state() -> Instruction:
    """DW_CFA_restore_state."""
    return _plain(0x0B)


def def_cfa(register: int, offset: int) -> Instruction:
    """DW_CFA_def_cfa, the offset in bytes."""
    return _plain(0x0C, ("uleb", register), ("uleb", offset))


def def_cfa_sf(register: int, factored: int) -> Instruction:
    """DW_CFA_def_cfa_sf."""
    return _plain(0x12, ("uleb", register), ("sleb", factored))


def def_cfa_register(register: int) -> Instruction:
    """DW_CFA_def_cfa_register."""
    return _plain(0x0D, ("uleb", register))


def def_cfa_offset(offset: int) -> Instruction:
    """DW_CFA_def_cfa_offset, the offset in bytes."""
    return _plain(0x0E, ("uleb", offset))


def def_cfa_offset_sf(factored: int) -> Instruction:
    """DW_CFA_def_cfa_offset_sf."""
    return _plain(0x13, ("sleb", factored))


def def_cfa_expression(expression: bytes) -> Instruction:
    """DW_CFA_def_cfa_expression."""
    return _plain(0x0F, ("uleb", len(expression)), tail=expression)


def expression(register: int, expression: bytes) -> Instruction:
    """DW_CFA_expression."""
    return _plain(0x10, ("uleb", register), ("uleb", len(expression)), tail=expression)


def val_expression(register: int, expression: bytes) -> Instruction:
    """DW_CFA_val_expression."""
    return _plain(0x16, ("uleb", register), ("uleb", len(expression)), tail=expression)


def val_offset(register: int, factored: int) -> Instruction:
    """DW_CFA_val_offset."""
    return _plain(0x14, ("uleb", register), ("uleb", factored))


def val_offset_sf(register: int, factored: int) -> Instruction:
    """DW_CFA_val_offset_sf."""
    return _plain(0x15, ("uleb", register), ("sleb", factored))


def aarch64_set_ra_state(state: int, pc_offset: int = 0) -> Instruction:
    """DW_CFA_AARCH64_set_ra_state (AADWARF64, 4.4): 0 not signed, 1 signed with SP, 2 with SP and PC."""
    return _plain(0x2B, ("uleb", state), ("sleb", pc_offset))


def aarch64_negate_ra_state_with_pc() -> Instruction:
    """DW_CFA_AARCH64_negate_ra_state_with_pc."""
    return _plain(0x2C)


def aarch64_negate_ra_state() -> Instruction:
    """DW_CFA_AARCH64_negate_ra_state, the opcode that SPARC calls DW_CFA_GNU_window_save."""
    return _plain(0x2D)


def gnu_args_size(size: int) -> Instruction:
    """DW_CFA_GNU_args_size, in bytes."""
    return _plain(0x2E, ("uleb", size))
