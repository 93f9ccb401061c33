# SPDX-License-Identifier: Apache-2.0
"""LEB128 numbers (DWARF 5, 7.6) and encoded pointers (LSB, "DWARF Exception Header Encoding"): every form and limit.

`test_entries` has pointers of each form with each base.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.numbers import PointerBases, read_pointer, read_sleb, read_uleb, read_value
from cfi2sframe.errors import CfiError
from tests.support.dwarf import cfi_asm as asm

Reader = Callable[[bytes, int], tuple[int, int]]

UINT64_MAX, INT64_MIN, INT64_MAX = (1 << 64) - 1, -(1 << 63), (1 << 63) - 1
DATA_VADDR, TABLE_VADDR, FIELD_OFFSET = 0x4000, 0x70000, 5
BASES = PointerBases("<", TABLE_VADDR, {0x5005: 0x1234_5678_9ABC}.get)


@pytest.mark.parametrize(
    ("read", "encoded", "value"),
    [
        # The examples of DWARF 5, tables 7.7 and 7.8, and the largest numbers.
        *((read_uleb, *case) for case in (("02", 2), ("7f", 127), ("8001", 128), ("8101", 129), ("b964", 12857))),
        *((read_uleb, *case) for case in (("40", 64), ("ffffffffffffffffff01", UINT64_MAX))),
        *((read_sleb, *case) for case in (("02", 2), ("7e", -2), ("ff00", 127), ("817f", -127), ("8001", 128))),
        *((read_sleb, *case) for case in (("807f", -128), ("8101", 129), ("ff7e", -129), ("3f", 63), ("40", -64))),
        *((read_sleb, *case) for case in (("ffffffffffffffffff00", INT64_MAX), ("8080808080808080807f", INT64_MIN))),
        # Assemblers pad numbers whose width they fix before they know the value.
        *((read, "85" + "80" * size + "00", 5) for read in (read_uleb, read_sleb) for size in (1, 12, 30)),
        *((read_sleb, "fe" + "ff" * size + "7f", -2) for size in (0, 11, 29)),
    ],
)
def test_leb128(read: Reader, encoded: str, value: int) -> None:
    data = bytes.fromhex(encoded)
    assert read(b"\xff" + data + b"\x7f", 1) == (value, 1 + len(data))


@pytest.mark.parametrize("read", [read_uleb, read_sleb])
def test_a_number_without_end_is_refused_early(read: Reader) -> None:
    with pytest.raises(CfiError, match="oversized"):
        read(b"\x80" * 100 + b"\x00", 0)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        *((read_uleb, asm.uleb128(value)) for value in (UINT64_MAX + 1, 1 << 70)),
        *((read_sleb, asm.sleb128(value)) for value in (INT64_MAX + 1, INT64_MIN - 1, 1 << 70)),
    ],
)
def test_more_than_64_bits(read: Reader, data: bytes) -> None:
    with pytest.raises(CfiError, match="more than 64 bits"):
        read(data, 0)


@given(st.integers(INT64_MIN, UINT64_MAX), st.binary(max_size=3))
def test_what_was_written_is_read(value: int, rest: bytes) -> None:
    if value >= 0:
        assert read_uleb(asm.uleb128(value) + rest, 0) == (value, len(asm.uleb128(value)))
    if value <= INT64_MAX:
        assert read_sleb(asm.sleb128(value) + rest, 0) == (value, len(asm.sleb128(value)))


#: Form -> size, and the value of bytes fe to f7, or of as many as it has.
FORMS = {
    d.DW_EH_PE_absptr: (8, 0xF7F8_F9FA_FBFC_FDFE),
    d.DW_EH_PE_udata2: (2, 0xFDFE),
    d.DW_EH_PE_udata4: (4, 0xFBFC_FDFE),
    d.DW_EH_PE_udata8: (8, 0xF7F8_F9FA_FBFC_FDFE),
    d.DW_EH_PE_sdata2: (2, 0xFDFE - (1 << 16)),
    d.DW_EH_PE_sdata4: (4, 0xFBFC_FDFE - (1 << 32)),
    d.DW_EH_PE_sdata8: (8, 0xF7F8_F9FA_FBFC_FDFE - (1 << 64)),
}
LEB_FORMS = {d.DW_EH_PE_uleb128: 16382, d.DW_EH_PE_sleb128: -2}


def test_every_form_of_the_constants_is_tested() -> None:
    values = {value for name, value in vars(d).items() if name.startswith("DW_EH_PE_")}
    assert {value for value in values if value < 0x10} == {*FORMS, *LEB_FORMS}


@pytest.mark.parametrize("form", [*FORMS, *LEB_FORMS])
def test_forms(form: int) -> None:
    """Whole in either byte order, and cut at every byte."""
    if form in FORMS:
        size, value = FORMS[form]
        data = bytes(range(0xFE, 0xFE - size, -1))
        assert read_value(b"\xee" + data[::-1] + b"\xee", 1, form, ">") == (value, 1 + size)
    else:
        value, data = LEB_FORMS[form], b"\xfe\x7f"
    assert read_value(b"\xee" + data + b"\xee", 1, form, "<") == (value, 1 + len(data))
    for size in range(len(data)):
        with pytest.raises(CfiError, match="truncated"):
            read_pointer(b"\xee" + data[:size], 1, form, BASES, DATA_VADDR)


@pytest.mark.parametrize("data_vaddr", [0x4000, 0x4003, 0x4007])
@pytest.mark.parametrize("field_offset", [0, 1, 5])
def test_aligned_pointer_is_at_the_next_multiple_of_its_size(data_vaddr: int, field_offset: int) -> None:
    start = field_offset + -(data_vaddr + field_offset) % 8
    data = b"\xee" * start + (0x1122_3344_5566).to_bytes(8, "little") + b"\xee"
    assert read_pointer(data, field_offset, d.DW_EH_PE_aligned, BASES, data_vaddr) == (0x1122_3344_5566, start + 8)


@pytest.mark.parametrize(
    ("encoding", "field", "vaddr"),
    [
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, -0x5000, (1 << 64) - 0x1000 + FIELD_OFFSET),
        (d.DW_EH_PE_datarel | d.DW_EH_PE_udata4, 0x10, TABLE_VADDR + 0x10),
        # Loaded from the address that the base gives.
        (d.DW_EH_PE_indirect | d.DW_EH_PE_absptr, 0x5005, 0x1234_5678_9ABC),
        (d.DW_EH_PE_indirect | d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, 0x1000, 0x1234_5678_9ABC),
        (d.DW_EH_PE_indirect | d.DW_EH_PE_datarel | d.DW_EH_PE_sdata8, 0x5005 - TABLE_VADDR, 0x1234_5678_9ABC),
    ],
)
def test_bases(encoding: int, field: int, vaddr: int) -> None:
    """Addresses wrap at 64 bits."""
    size = FORMS[encoding & 0x0F][0]
    data = b"\xee" * FIELD_OFFSET + field.to_bytes(size, "little", signed=field < 0)
    assert read_pointer(data, FIELD_OFFSET, encoding, BASES, DATA_VADDR) == (vaddr, FIELD_OFFSET + size)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        *((encoding | d.DW_EH_PE_sdata4, "has no base") for encoding in (0x20, 0x40, d.DW_EH_PE_aligned, 0x60, 0x70)),
        *((form, "unknown pointer encoding") for form in (*range(5, 9), *range(0x0D, 0x10), 0x1F, d.DW_EH_PE_omit)),
        (d.DW_EH_PE_indirect, "indirect pointer through 0x0, which the file does not hold"),
        (d.DW_EH_PE_datarel, "a global offset table that the file does not have"),
    ],
)
def test_pointers_to_nothing(encoding: int, message: str) -> None:
    number = "" if "file" in message else f"0x{encoding:02x}"
    with pytest.raises(CfiError, match=message) as caught:
        read_pointer(bytes(16), 0, encoding, BASES._replace(table_vaddr=None), DATA_VADDR)
    assert number in caught.value.reason
