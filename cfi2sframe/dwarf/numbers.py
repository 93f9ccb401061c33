# SPDX-License-Identifier: Apache-2.0
"""LEB128 numbers (DWARF 5, 7.6), and encoded pointers of `.eh_frame` (LSB, "DWARF Exception Header Encoding")."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from cfi2sframe.constants import dwarf as d
from cfi2sframe.errors import CfiError

#: Bytes of the longest encoding that is read. Ten hold 64 bits, and padding may legally follow.
_MAX_SIZE: Final = 32
_MASK: Final = (1 << 64) - 1
_FIXED_FORMS: Final = {
    d.DW_EH_PE_absptr: ("Q", 8),
    d.DW_EH_PE_udata2: ("H", 2),
    d.DW_EH_PE_udata4: ("I", 4),
    d.DW_EH_PE_udata8: ("Q", 8),
    d.DW_EH_PE_sdata2: ("h", 2),
    d.DW_EH_PE_sdata4: ("i", 4),
    d.DW_EH_PE_sdata8: ("q", 8),
}


def read_uleb(data: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned number at `offset` and the offset past it.

    Raises `CfiError` when it is truncated or over 64 bits.
    """
    value, end = _read(data, offset)
    if value >= 1 << 64:
        raise CfiError("LEB128 number of more than 64 bits")
    return value, end


def read_sleb(data: bytes, offset: int) -> tuple[int, int]:
    """Return the signed number at `offset` and the offset past it.

    Raises `CfiError` when it is truncated or over 64 bits.
    """
    value, end = _read(data, offset)
    if data[end - 1] & 0x40:
        value -= 1 << 7 * (end - offset)
    if not -(1 << 63) <= value < 1 << 63:
        raise CfiError("LEB128 number of more than 64 bits")
    return value, end


def _read(data: bytes, offset: int) -> tuple[int, int]:
    """Return the bits of a number as an unsigned one, and the offset past it."""
    value = 0
    for position in range(offset, min(len(data), offset + _MAX_SIZE)):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - offset)
        if byte < 0x80:
            return value, position + 1
    raise CfiError("truncated or oversized LEB128 number")


def encode_uleb(value: int) -> bytes:
    """Return the shortest encoding of an unsigned number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_sleb(value: int) -> bytes:
    """Return the shortest encoding of a signed number."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


class PointerBases(NamedTuple):
    """Bases that the pointers of a section count from, besides their own addresses.

    `byte_order` is `<` or `>`. `table_vaddr` is the address of the global offset table (None: there is none), which
    DW_EH_PE_datarel pointers count from. `load_word(vaddr)` returns the 8-byte word at an address, for indirect
    pointers; None when the file does not hold it.
    """

    byte_order: str
    table_vaddr: int | None
    load_word: Callable[[int], int | None]


class Location(NamedTuple):
    """The addresses of a function and of its instructions, and the bases of pointers, for DW_CFA_set_loc."""

    pc_begin_vaddr: int
    instructions_vaddr: int
    bases: PointerBases


def fixed_size(encoding: int) -> int | None:
    """Return the size in bytes of pointers of an encoding; None for LEB128 numbers and for unknown forms."""
    fixed = _FIXED_FORMS.get(encoding & 0x0F)
    return None if fixed is None else fixed[1]


def read_value(data: bytes, offset: int, encoding: int, byte_order: str) -> tuple[int, int]:
    """Return the number at `offset`, in the form of the encoding's low four bits, and the offset past it.

    Raises `CfiError` when the number is truncated, or the form is unknown.
    """
    form = encoding & 0x0F
    fixed = _FIXED_FORMS.get(form)
    if fixed is not None:
        code, size = fixed
        if offset + size > len(data):
            raise CfiError("truncated pointer")
        return struct.unpack_from(byte_order + code, data, offset)[0], offset + size
    if form == d.DW_EH_PE_uleb128:
        return read_uleb(data, offset)
    if form == d.DW_EH_PE_sleb128:
        return read_sleb(data, offset)
    raise CfiError(f"unknown pointer encoding 0x{encoding:02x}")


def read_pointer(data: bytes, offset: int, encoding: int, bases: PointerBases, data_vaddr: int) -> tuple[int, int]:
    """Return the address that an encoded pointer at `offset` has, and the offset past it.

    `data_vaddr` is the address of `data[0]`. Raises `CfiError` when the pointer is truncated, of an unknown encoding,
    or cannot be resolved in a file.
    """
    if encoding == d.DW_EH_PE_aligned:
        offset += -(data_vaddr + offset) % 8
        return read_value(data, offset, d.DW_EH_PE_absptr, bases.byte_order)
    value, end = read_value(data, offset, encoding, bases.byte_order)
    relative = encoding & 0x70
    if relative == d.DW_EH_PE_pcrel:
        value += data_vaddr + offset
    elif relative == d.DW_EH_PE_datarel:
        if bases.table_vaddr is None:
            raise CfiError("pointer relative to a global offset table that the file does not have")
        value += bases.table_vaddr
    elif relative:
        raise CfiError(f"pointer encoding 0x{encoding:02x} has no base in a file")
    value &= _MASK
    if encoding & d.DW_EH_PE_indirect:
        loaded = bases.load_word(value)
        if loaded is None:
            raise CfiError(f"indirect pointer through 0x{value:x}, which the file does not hold")
        value = loaded
    return value, end
