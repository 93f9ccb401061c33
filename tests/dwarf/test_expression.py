# SPDX-License-Identifier: Apache-2.0
"""DWARF expressions (DWARF 5, 2.5): operands of every operation, shapes, and text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.expression import Operation, expression_text, parse_expression, value_of
from cfi2sframe.errors import CfiError
from tests.support.dwarf.cfi_asm import sleb128, uleb128
from tests.support.dwarf.rules import at_cfa, value_at_cfa
from tests.support.dwarf.rules import loaded as load
from tests.support.dwarf.rules import register_offset as total

DEREF, PLUS, MINUS, NOP = b"\x06", b"\x22", b"\x1c", b"\x96"


def breg(register: int, offset: int) -> bytes:
    return bytes((d.DW_OP_breg0 + register,)) + sleb128(offset)


def bregx(register: int, offset: int) -> bytes:
    return b"\x92" + uleb128(register) + sleb128(offset)


def plus_uconst(value: int) -> bytes:
    return b"\x23" + uleb128(value)


def lit(value: int) -> bytes:
    return bytes((d.DW_OP_lit0 + value,))


def consts(value: int) -> bytes:
    return b"\x11" + sleb128(value)


#: Operations without operands.
PLAIN = (
    *("deref", "dup", "drop", "over", "swap", "rot", "abs", "and", "div", "minus", "mod", "mul", "neg", "not"),
    *("or", "plus", "shl", "shr", "shra", "xor", "eq", "ge", "gt", "le", "lt", "ne", "nop"),
)
#: Name, bytes in little-endian order, the operands, and whether the bytes turn around in big-endian order.
OPERANDS = (
    ("addr", "030123456789abcdef", (0xEFCDAB8967452301,), True),
    ("const1u", "08fe", (0xFE,), False),
    ("const1s", "09fe", (-2,), False),
    ("const2u", "0afedc", (0xDCFE,), True),
    ("const2s", "0bfedc", (0xDCFE - 0x10000,), True),
    ("const4u", "0c010203fe", (0xFE030201,), True),
    ("const4s", "0d010203fe", (0xFE030201 - (1 << 32),), True),
    ("const8u", "0e01020304050607fe", (0xFE07060504030201,), True),
    ("const8s", "0f01020304050607fe", (0xFE07060504030201 - (1 << 64),), True),
    ("constu", "10e440", (8292,), False),
    ("consts", "11e440", (-8092,), False),
    ("pick", "15ff", (255,), False),
    ("plus_uconst", "23e440", (8292,), False),
    ("bra", "28fedc", (0xDCFE - 0x10000,), True),
    ("skip", "2ffedc", (0xDCFE - 0x10000,), True),
    ("bregx", "92e440e440", (8292, -8092), False),
    ("deref_size", "94ff", (255,), False),
    *((name, f"{vars(d)['DW_OP_' + name]:02x}", (), False) for name in PLAIN),
)
RANGES = {"lit0", "lit31", "reg0", "breg0", "breg31"}


def test_every_operation_of_the_constants_is_tested() -> None:
    names = {name.removeprefix("DW_OP_") for name in vars(d) if name.startswith("DW_OP_")}
    assert names == {*RANGES, *(name for name, _, _, _ in OPERANDS)}
    for name, encoded, _, _ in OPERANDS:
        assert int(encoded[:2], 16) == vars(d)["DW_OP_" + name]


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize(("name", "encoded", "operands", "turns"), OPERANDS)
def test_operands(name: str, encoded: str, operands: tuple[int, ...], turns: bool, byte_order: str) -> None:  # noqa: FBT001
    data = bytes.fromhex(encoded)
    if turns and byte_order == ">":
        data = data[:1] + data[:0:-1]
    expected = Operation(vars(d)["DW_OP_" + name], operands)
    assert parse_expression(NOP + data + NOP, byte_order) == (Operation(0x96, ()), expected, Operation(0x96, ()))
    assert expression_text(data, byte_order) == " ".join((name, *map(str, operands)))


@pytest.mark.parametrize("encoded", [encoded for _, encoded, _, _ in OPERANDS] + ["77e440"])
def test_truncated_at_every_byte(encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for size in range(1, len(whole)):
        with pytest.raises(CfiError, match="truncated"):
            parse_expression(NOP + whole[:size], "<")


KNOWN = {opcode for name, opcode in vars(d).items() if name.startswith("DW_OP_")} - {d.DW_OP_reg0}
KNOWN |= {*range(d.DW_OP_lit0, d.DW_OP_lit31 + 1), *range(d.DW_OP_breg0, d.DW_OP_breg31 + 1)}


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - KNOWN))
def test_unknown_operations(opcode: int) -> None:
    """Among them DW_OP_reg0 to reg31: they name a place, and CFI may not use them (DWARF 5, 6.4.2)."""
    with pytest.raises(CfiError, match=f"unknown expression operation 0x{opcode:02x}"):
        parse_expression(breg(7, 8) + bytes((opcode,)) + bytes(8), "<")


# --- Shapes -------------------------------------------------------------------------------------------------


#: Expressions, by themselves and where the CFA is on the stack, and what they are; `test_sums_of_any_length` has more.
SHAPES: list[tuple[bytes, Rule | int]] = [
    (bregx(46, 16), total(46, 16)),
    (NOP + breg(7, 8) + NOP, total(7, 8)),
    (bregx(100, -16) + DEREF, load(100, -16)),
    (breg(7, 8) + plus_uconst(100) + DEREF, load(7, 108)),
    (lit(31) + breg(7, 8) + PLUS, total(7, 39)),
    (breg(7, 8) + lit(3) + lit(4) + MINUS + PLUS, total(7, 7)),
    (breg(7, 8) + lit(3) + plus_uconst(4) + MINUS, total(7, 1)),
    (breg(7, (1 << 63) - 1) + plus_uconst(1), total(7, -(1 << 63))),
    # The result is what is on top.
    (breg(3, 1) + breg(7, 8), total(7, 8)),
    (lit(5) + breg(7, 8), total(7, 8)),
    (lit(8), 8),
    (consts(-8), -8),
    (lit(8) + plus_uconst(8), 16),
    (lit(8) + lit(9) + MINUS, -1),
]
SHAPES_AFTER_CFA = [
    (b"", value_at_cfa(0)),
    (NOP, value_at_cfa(0)),
    (plus_uconst(24), value_at_cfa(24)),
    (lit(16) + MINUS + DEREF, at_cfa(-16)),
    # What the CFA was pushed for need not be used.
    (breg(7, 120) + DEREF, load(7, 120)),
]
WITHOUT_SHAPE = [
    b"",
    NOP,
    lit(8) + DEREF,
    b"\x03" + bytes(8),
    # *(reg + a) + b, as in hand-written functions of OpenSSL, and **(reg + a).
    breg(7, 40) + DEREF + plus_uconst(8),
    plus_uconst(8),
    lit(8) + breg(7, 40) + DEREF + PLUS,
    breg(7, 40) + DEREF + lit(8) + MINUS,
    breg(6, 0) + DEREF + DEREF,
    # Sums of two registers, a constant less a register, and nothing to add to.
    breg(6, 0) + breg(7, 0) + PLUS,
    breg(6, 0) + breg(7, 0) + MINUS,
    lit(8) + breg(7, 0) + MINUS,
    PLUS,
    MINUS,
    DEREF,
    breg(7, 0) + PLUS,
    # The PLT's and the vector length's.
    bytes.fromhex("7708 8000 3f 1a 3b 2a 33 24 22"),
    breg(31, 0) + bregx(46, 0) + lit(8) + b"\x1e" + PLUS,
    breg(7, 8) + b"\x94\x08",
    # Operations that no shape has.
    *(
        breg(6, 8) + breg(7, 8) + lit(3) + bytes((vars(d)["DW_OP_" + name],))
        for name in PLAIN
        if name not in {"deref", "plus", "minus", "nop"}
    ),
]


@pytest.mark.parametrize(
    ("expression", "starts_with_cfa", "shape"),
    [
        *((expression, False, shape) for expression, shape in SHAPES),
        *((expression, True, shape) for expression, shape in SHAPES_AFTER_CFA),
        *((expression, False, None) for expression in WITHOUT_SHAPE),
    ],
)
def test_shapes(expression: bytes, starts_with_cfa: bool, shape: Rule | int | None) -> None:  # noqa: FBT001
    assert value_of(expression, "<", starts_with_cfa=starts_with_cfa) == shape


def test_constants_are_read_in_the_byte_order_of_the_file() -> None:
    expression = breg(15, 0) + b"\x0a\x01\x02" + PLUS
    assert value_of(expression, "<", starts_with_cfa=False) == total(15, 0x201)
    assert value_of(expression, ">", starts_with_cfa=False) == total(15, 0x102)


# --- Text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (b"", ""),
        (bregx(46, -1) + lit(8) + b"\x1e" + PLUS, "bregx 46 -1; lit8; mul; plus"),
        (b"\x9c\x06", "bytes 9c 06"),
    ],
)
def test_text(expression: bytes, text: str) -> None:
    assert expression_text(expression, "<") == text


# --- Properties ---------------------------------------------------------------------------------------------

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_PUSHES = st.one_of(
    st.integers(0, 31).map(lambda value: (lit(value), value)),
    _INT64.map(lambda value: (consts(value), value)),
    st.integers(0, (1 << 64) - 1).map(lambda value: (b"\x10" + uleb128(value), value)),
    st.integers(0, (1 << 32) - 1).map(lambda value: (b"\x0c" + value.to_bytes(4, "little"), value)),
)


@given(
    st.integers(0, 31),
    _INT64,
    st.lists(st.tuples(_PUSHES, st.sampled_from((PLUS, MINUS))), max_size=8),
    st.sampled_from((b"", DEREF)),
)
def test_sums_of_any_length(
    register: int, offset: int, terms: list[tuple[tuple[bytes, int], bytes]], end: bytes
) -> None:
    """DWARF 5, 2.5.1.4: plus and minus are done on words of the address size, modulo its range."""
    expression, value_sum = breg(register, offset), offset
    for (push, value), operation in terms:
        expression += push + operation
        value_sum += value if operation == PLUS else -value
    wrapped = int.from_bytes((value_sum & ((1 << 64) - 1)).to_bytes(8, "little"), "little", signed=True)
    assert value_of(expression + end, "<", starts_with_cfa=False) == Rule(register, wrapped, deref=bool(end))


def test_long_expressions_are_shown_in_part() -> None:
    """Whole operations, until 32 bytes of the expression are shown; damage after them is not looked for."""
    assert expression_text(NOP * 32, "<") == "; ".join(["nop"] * 32)
    assert expression_text(NOP * 1_040, "<") == "; ".join(["nop"] * 32) + "; and 1,008 more bytes"
    const8u = bytes((0x0E,)) + bytes(8)
    assert expression_text(const8u * 5 + b"\xff", "<") == "; ".join(["const8u 0"] * 4) + "; and 10 more bytes"
    assert expression_text(b"\xff" + NOP * 40, "<") == "bytes ff" + " 96" * 31 + "; and 9 more bytes"
