# SPDX-License-Identifier: Apache-2.0
"""Encoded pointers (LSB, "DWARF Exception Header Encoding"): every form with every base, and what has no form."""

from __future__ import annotations

from typing import Literal

import pytest

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.pointer import PointerBases, read_pointer, read_value
from cfi2sframe.errors import CfiError

DATA_VADDR = 0x4000
TABLE_VADDR = 0x70000
FIELD_OFFSET = 5
MASK = (1 << 64) - 1
WORDS = {0x5005: 0x1234_5678_9ABC}

#: Form -> (a positive value in it, a value with its highest bit set as it reads).
FORMS = {
    d.DW_EH_PE_absptr: (8, 0x7654_3210_0123_4567, 0xFEDC_BA98_7654_3210),
    d.DW_EH_PE_udata2: (2, 0x7654, 0xFEDC),
    d.DW_EH_PE_udata4: (4, 0x7654_3210, 0xFEDC_BA98),
    d.DW_EH_PE_udata8: (8, 0x7654_3210_0123_4567, 0xFEDC_BA98_7654_3210),
    d.DW_EH_PE_sdata2: (2, 0x7654, 0xFEDC - (1 << 16)),
    d.DW_EH_PE_sdata4: (4, 0x7654_3210, 0xFEDC_BA98 - (1 << 32)),
    d.DW_EH_PE_sdata8: (8, 0x7654_3210_0123_4567, 0xFEDC_BA98_7654_3210 - (1 << 64)),
}
LEB_FORMS = {
    d.DW_EH_PE_uleb128: [("e58e26", 624485), ("40", 64), ("ff7f", 16383)],
    d.DW_EH_PE_sleb128: [("e58e26", 624485), ("40", -64), ("ff7e", -129)],
}
BASE_VALUES = {
    d.DW_EH_PE_absptr: 0,
    d.DW_EH_PE_pcrel: DATA_VADDR + FIELD_OFFSET,
    d.DW_EH_PE_datarel: TABLE_VADDR,
}


def bases(byte_order: str = "<", *, table_vaddr: int | None = TABLE_VADDR) -> PointerBases:
    return PointerBases(byte_order, table_vaddr, WORDS.get)


def fixed_bytes(value: int, size: int, byte_order: str) -> bytes:
    order: Literal["little", "big"] = "little" if byte_order == "<" else "big"
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, order)


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("base", BASE_VALUES)
@pytest.mark.parametrize("which", [1, 2], ids=["low", "high-bit"])
@pytest.mark.parametrize("form", FORMS)
def test_fixed_forms_with_each_base(form: int, which: Literal[1, 2], base: int, byte_order: str) -> None:
    size, value = FORMS[form][0], FORMS[form][which]
    data = b"\xee" * FIELD_OFFSET + fixed_bytes(value, size, byte_order) + b"\xee" * 3
    assert read_value(data, FIELD_OFFSET, form | base, byte_order) == (value, FIELD_OFFSET + size)
    vaddr, end = read_pointer(data, FIELD_OFFSET, form | base, bases(byte_order), DATA_VADDR)
    assert vaddr == (value + BASE_VALUES[base]) & MASK
    assert end == FIELD_OFFSET + size


@pytest.mark.parametrize("base", BASE_VALUES)
@pytest.mark.parametrize(
    ("form", "encoded", "value"), [(form, *case) for form, cases in LEB_FORMS.items() for case in cases]
)
def test_leb_forms_with_each_base(form: int, encoded: str, value: int, base: int) -> None:
    data = b"\xee" * FIELD_OFFSET + bytes.fromhex(encoded) + b"\x01"
    vaddr, end = read_pointer(data, FIELD_OFFSET, form | base, bases(), DATA_VADDR)
    assert vaddr == (value + BASE_VALUES[base]) & MASK
    assert end == FIELD_OFFSET + len(encoded) // 2


def test_every_form_of_the_constants_is_tested() -> None:
    names = {name for name in vars(d) if name.startswith("DW_EH_PE_")}
    forms = {name for name in names if vars(d)[name] < 0x10}
    assert {vars(d)[name] for name in forms} == {*FORMS, *LEB_FORMS}


@pytest.mark.parametrize("form", [*FORMS, *LEB_FORMS])
def test_truncated_at_every_byte(form: int) -> None:
    whole = bytes.fromhex("e58e26") if form in LEB_FORMS else b"\x11" * FORMS[form][0]
    for size in range(len(whole)):
        with pytest.raises(CfiError, match="truncated"):
            read_pointer(b"\xee" * FIELD_OFFSET + whole[:size], FIELD_OFFSET, form, bases(), DATA_VADDR)


@pytest.mark.parametrize("data_vaddr", [0x4000, 0x4003, 0x4007])
@pytest.mark.parametrize("field_offset", [0, 1, 5])
def test_aligned_pointer_is_at_the_next_multiple_of_its_size(data_vaddr: int, field_offset: int) -> None:
    start = field_offset + -(data_vaddr + field_offset) % 8
    data = b"\xee" * start + fixed_bytes(0x1122_3344_5566, 8, "<") + b"\xee"
    found = read_pointer(data, field_offset, d.DW_EH_PE_aligned, bases(), data_vaddr)
    assert found == (0x1122_3344_5566, start + 8)


@pytest.mark.parametrize(
    ("encoding", "field"),
    [
        (d.DW_EH_PE_indirect | d.DW_EH_PE_absptr, 0x5005),
        (d.DW_EH_PE_indirect | d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, 0x1000),
        (d.DW_EH_PE_indirect | d.DW_EH_PE_datarel | d.DW_EH_PE_sdata8, 0x5005 - TABLE_VADDR),
    ],
)
def test_indirect_pointer_is_loaded_from_the_address_that_its_base_gives(encoding: int, field: int) -> None:
    size = FORMS[encoding & 0x0F][0]
    data = b"\xee" * FIELD_OFFSET + fixed_bytes(field, size, "<")
    found = read_pointer(data, FIELD_OFFSET, encoding, bases(), DATA_VADDR)
    assert found == (0x1234_5678_9ABC, FIELD_OFFSET + size)


def test_indirect_pointer_to_nothing() -> None:
    data = fixed_bytes(0x6000, 8, "<")
    with pytest.raises(CfiError, match="indirect pointer through 0x6000"):
        read_pointer(data, 0, d.DW_EH_PE_indirect, bases(), DATA_VADDR)


@pytest.mark.parametrize(
    "encoding",
    [
        d.DW_EH_PE_textrel | d.DW_EH_PE_sdata4,
        d.DW_EH_PE_funcrel | d.DW_EH_PE_sdata4,
        d.DW_EH_PE_aligned | d.DW_EH_PE_sdata4,
        0x60,
        0x70,
    ],
)
def test_bases_that_no_file_has(encoding: int) -> None:
    with pytest.raises(CfiError, match=f"0x{encoding:02x} has no base"):
        read_pointer(bytes(16), 0, encoding, bases(), DATA_VADDR)


def test_datarel_without_a_table() -> None:
    with pytest.raises(CfiError, match="a global offset table that the file does not have"):
        read_pointer(bytes(16), 0, d.DW_EH_PE_datarel, bases(table_vaddr=None), DATA_VADDR)


@pytest.mark.parametrize("encoding", [0x05, 0x06, 0x07, 0x08, 0x0D, 0x0E, 0x0F, 0x1F, d.DW_EH_PE_omit])
def test_unknown_forms(encoding: int) -> None:
    with pytest.raises(CfiError, match=f"unknown pointer encoding 0x{encoding:02x}"):
        read_pointer(bytes(16), 0, encoding, bases(), DATA_VADDR)


def test_addresses_wrap_at_64_bits() -> None:
    data = fixed_bytes(-0x5000, 4, "<")
    encoding = d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4
    assert read_pointer(data, 0, encoding, bases(), DATA_VADDR) == (MASK - 0xFFF, 4)
