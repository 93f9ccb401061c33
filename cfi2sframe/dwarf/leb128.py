# SPDX-License-Identifier: Apache-2.0
"""LEB128 integers (DWARF 5, 7.6)."""

from __future__ import annotations

from cfi2sframe.errors import CfiError

#: Bytes of the longest encoding that is read. Ten hold 64 bits, and padding may legally follow.
_MAX_SIZE = 32


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
