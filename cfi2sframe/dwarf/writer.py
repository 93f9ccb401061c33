# SPDX-License-Identifier: Apache-2.0
"""Rows to call frame instructions, and instructions to the entries of a `.debug_frame` (DWARF 5, 6.4; 7.24).

Sources of rows other than a file's own CFI are put into this form, so that everything behind reads one form only.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import encode_sleb, encode_uleb
from cfi2sframe.dwarf.rules import NoRule, RaSigning
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState, UnwindTable

#: The factors for which `row_instructions` writes: the bytes of a location and of an offset.
CODE_ALIGNMENT: Final = 1
DATA_ALIGNMENT: Final = -1
#: Bytes of an FDE before its instructions, and the offset of its pc_begin.
FDE_HEAD_SIZE: Final = 24
PC_BEGIN_OFFSET: Final = 8
_CIE_ID: Final = 0xFFFFFFFF
_CIE_VERSION: Final = 3
#: The alignment of a CIE's size (bytes).
_ENTRY_ALIGNMENT: Final = 8
#: Registers below this have an opcode of their own for offset and restore.
_PACKED_REGISTERS: Final = 0x40
_OPCODES: Final = {NoRule.UNDEFINED: d.DW_CFA_undefined, NoRule.SAME_VALUE: d.DW_CFA_same_value}


def cie(
    arch: Arch,
    *,
    code_alignment: int,
    data_alignment: int,
    instructions: bytes,
    is_signal_frame: bool,
    uses_b_key: bool,
) -> bytes:
    """Return a CIE of version 3 with its length field; addresses in its FDEs are absolute.

    With `is_signal_frame` or `uses_b_key` there is an augmentation, and the instructions of each FDE begin with a byte
    0, the size of its augmentation data.
    """
    letters = b"S" * is_signal_frame + b"B" * uses_b_key
    body = struct.pack(arch.byte_order + "IB", _CIE_ID, _CIE_VERSION) + b"z" * bool(letters) + letters + b"\0"
    body += (
        encode_uleb(code_alignment)
        + encode_sleb(data_alignment)
        + encode_uleb(arch.ra_register)
        + b"\0" * bool(letters)
        + instructions
    )
    body += bytes(-len(body) % _ENTRY_ALIGNMENT)
    return struct.pack(arch.byte_order + "I", len(body)) + body


def fde_head(byte_order: str, cie_offset: int, start_vaddr: int, size: int, instructions_size: int) -> bytes:
    """Return the bytes of an FDE before its instructions; `size` counts bytes of code."""
    return struct.pack(byte_order + "IIQQ", FDE_HEAD_SIZE - 4 + instructions_size, cie_offset, start_vaddr, size)


def advance(units: int, byte_order: str) -> bytes:
    """Return the instruction that advances the location by some units of the CIE's code alignment."""
    if units < 0x40:
        return bytes((d.DW_CFA_advance_loc | units,)) if units else b""
    if units < 0x100:
        return bytes((d.DW_CFA_advance_loc1, units))
    code, opcode = ("H", d.DW_CFA_advance_loc2) if units < 0x10000 else ("I", d.DW_CFA_advance_loc4)
    return struct.pack(f"{byte_order}B{code}", opcode, units)


def row_instructions(table: UnwindTable, arch: Arch) -> bytes:
    """Return the instructions that make a table's rows, after a CIE without rules and with the factors above.

    Equal tables have equal instructions. No RA may be signed with the PC.
    """
    parts: list[bytes] = []
    if any(last.cfa is not None and state.cfa is None for last, state in pairwise(table.states)):
        # No other instruction takes the CFA's rule away.
        parts.append(bytes((d.DW_CFA_remember_state,)))
    parts += _changes(None, table.states[0], arch)
    for (start, last), (next_start, state) in pairwise(zip(table.starts, table.states, strict=True)):
        parts.append(advance(next_start - start, arch.byte_order))
        if last.cfa is not None and state.cfa is None:
            parts.append(bytes((d.DW_CFA_restore_state, d.DW_CFA_remember_state)))
            parts += _changes(None, state, arch)
        else:
            parts += _changes(last, state, arch)
    return b"".join(parts)


def _changes(last: RowState | None, state: RowState, arch: Arch) -> list[bytes]:
    """Return the instructions that change one state to another; None is that of the CIE."""
    parts = []
    if state.cfa is not None and (last is None or last.cfa != state.cfa):
        parts.append(_cfa(None if last is None else last.cfa, state.cfa))
    for register, old, new in (
        (arch.ra_register, NoRule.UNSPECIFIED if last is None else last.ra, state.ra),
        (arch.fp_register, NoRule.UNSPECIFIED if last is None else last.fp, state.fp),
        (arch.sp_register, NoRule.UNSPECIFIED if last is None else last.sp, state.sp),
    ):
        if old != new:
            parts.append(_register(register, new))
    if (RaSigning.NONE if last is None else last.signing) != state.signing:
        parts.append(bytes((d.DW_CFA_AARCH64_negate_ra_state,)))
    return parts


def _cfa(last: CfaRule | None, cfa: CfaRule) -> bytes:
    if not isinstance(cfa, Rule):
        return bytes((d.DW_CFA_def_cfa_expression,)) + _block(cfa.code)
    if isinstance(last, Rule):
        if last.offset == cfa.offset:
            return bytes((d.DW_CFA_def_cfa_register,)) + encode_uleb(cfa.register or 0)
        if last.register == cfa.register and cfa.offset >= 0:
            return bytes((d.DW_CFA_def_cfa_offset,)) + encode_uleb(cfa.offset)
    if cfa.offset >= 0:
        return bytes((d.DW_CFA_def_cfa,)) + encode_uleb(cfa.register or 0) + encode_uleb(cfa.offset)
    return bytes((d.DW_CFA_def_cfa_sf,)) + encode_uleb(cfa.register or 0) + encode_sleb(cfa.offset // DATA_ALIGNMENT)


def _register(register: int, rule: RegisterRule) -> bytes:
    number = encode_uleb(register)
    if isinstance(rule, Rule) and rule.is_saved_at_cfa:
        if rule.offset <= 0 and register < _PACKED_REGISTERS:
            return bytes((d.DW_CFA_offset | register,)) + encode_uleb(rule.offset // DATA_ALIGNMENT)
        return bytes((d.DW_CFA_offset_extended_sf,)) + number + encode_sleb(rule.offset // DATA_ALIGNMENT)
    if isinstance(rule, Rule) and rule.register is None:
        return bytes((d.DW_CFA_val_offset_sf,)) + number + encode_sleb(rule.offset // DATA_ALIGNMENT)
    if isinstance(rule, Rule):
        return bytes((d.DW_CFA_register,)) + number + encode_uleb(rule.register or 0)
    if not isinstance(rule, NoRule):
        opcode = d.DW_CFA_expression if rule.deref else d.DW_CFA_val_expression
        return bytes((opcode,)) + number + _block(rule.code)
    if rule is NoRule.UNSPECIFIED:
        if register < _PACKED_REGISTERS:
            return bytes((d.DW_CFA_restore | register,))
        return bytes((d.DW_CFA_restore_extended,)) + number
    return bytes((_OPCODES[rule],)) + number


def _block(expression: bytes) -> bytes:
    return encode_uleb(len(expression)) + expression
