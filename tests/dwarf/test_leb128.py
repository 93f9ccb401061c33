# SPDX-License-Identifier: Apache-2.0
"""LEB128 numbers (DWARF 5, 7.6): the standard's examples, limits, padding, and every way to end too early."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.dwarf.leb128 import read_sleb, read_uleb
from cfi2sframe.errors import CfiError
from tests.support import cfi_asm as asm

Reader = Callable[[bytes, int], tuple[int, int]]

UINT64_MAX = (1 << 64) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        # The examples of DWARF 5, table 7.7.
        ("02", 2),
        ("7f", 127),
        ("8001", 128),
        ("8101", 129),
        ("b964", 12857),
        ("00", 0),
        ("40", 64),
        ("ffffffffffffffffff01", UINT64_MAX),
    ],
)
def test_uleb128(encoded: str, value: int) -> None:
    data = bytes.fromhex(encoded)
    assert read_uleb(b"\xff" + data + b"\x7f", 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        # The examples of DWARF 5, table 7.8.
        ("02", 2),
        ("7e", -2),
        ("ff00", 127),
        ("817f", -127),
        ("8001", 128),
        ("807f", -128),
        ("8101", 129),
        ("ff7e", -129),
        ("3f", 63),
        ("40", -64),
        ("ffffffffffffffffff00", INT64_MAX),
        ("8080808080808080807f", INT64_MIN),
    ],
)
def test_sleb128(encoded: str, value: int) -> None:
    data = bytes.fromhex(encoded)
    assert read_sleb(b"\xff" + data + b"\x7f", 1) == (value, 1 + len(data))


@pytest.mark.parametrize("padding_size", [1, 3, 12, 30])
def test_padding_changes_no_value(padding_size: int) -> None:
    """Assemblers pad numbers whose width they fix before they know the value."""
    positive = b"\x85" + b"\x80" * padding_size + b"\x00"
    negative = b"\xfe" + b"\xff" * (padding_size - 1) + b"\x7f"
    assert read_uleb(positive, 0) == (5, len(positive))
    assert read_sleb(positive, 0) == (5, len(positive))
    assert read_sleb(negative, 0) == (-2, len(negative))


@pytest.mark.parametrize("read", [read_uleb, read_sleb])
def test_a_number_without_end_is_refused_early(read: Reader) -> None:
    with pytest.raises(CfiError, match="oversized"):
        read(b"\x80" * 100 + b"\x00", 0)


@pytest.mark.parametrize("value", [1 << 64, 1 << 70])
def test_uleb128_over_64_bits(value: int) -> None:
    with pytest.raises(CfiError, match="more than 64 bits"):
        read_uleb(asm.uleb128(value), 0)


@pytest.mark.parametrize("value", [INT64_MAX + 1, INT64_MIN - 1, 1 << 70])
def test_sleb128_over_64_bits(value: int) -> None:
    with pytest.raises(CfiError, match="more than 64 bits"):
        read_sleb(asm.sleb128(value), 0)


@given(st.integers(0, UINT64_MAX), st.binary(max_size=3))
def test_uleb128_reads_what_was_written(value: int, rest: bytes) -> None:
    data = asm.uleb128(value)
    assert read_uleb(data + rest, 0) == (value, len(data))


@given(st.integers(INT64_MIN, INT64_MAX), st.binary(max_size=3))
def test_sleb128_reads_what_was_written(value: int, rest: bytes) -> None:
    data = asm.sleb128(value)
    assert read_sleb(data + rest, 0) == (value, len(data))
