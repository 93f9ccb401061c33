# SPDX-License-Identifier: Apache-2.0
"""DWARF expressions by their shape (DWARF 5, 2.5): those that are a base plus an offset, or one load from there.

Nothing is evaluated, since there are no register values here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import read_sleb, read_uleb
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sum(NamedTuple):
    """base + offset. The base is a register, the CFA (`register` None), or 0 (`is_constant`)."""

    register: int | None
    offset: int
    is_constant: bool = False


class Load(NamedTuple):
    """*(base + offset)."""

    address: Sum


Shape = Sum | Load

_FIXED_CONSTANTS: Final = {
    d.DW_OP_const1u: (1, False),
    d.DW_OP_const1s: (1, True),
    d.DW_OP_const2u: (2, False),
    d.DW_OP_const2s: (2, True),
    d.DW_OP_const4u: (4, False),
    d.DW_OP_const4s: (4, True),
    d.DW_OP_const8u: (8, False),
    d.DW_OP_const8s: (8, True),
}
_NAMES: Final = {
    value: name.removeprefix("DW_OP_")
    for name, value in vars(d).items()
    if name.startswith("DW_OP_")
    and name not in ("DW_OP_lit0", "DW_OP_lit31", "DW_OP_breg0", "DW_OP_breg31", "DW_OP_reg0")
}

#: Bytes of an expression that a message shows: many functions of a file may have the same large one.
_MAX_SHOWN_SIZE: Final = 32


class Operation(NamedTuple):
    """One operation with its operands: an opcode and integers."""

    opcode: int
    operands: tuple[int, ...]


def parse_expression(expression: bytes, byte_order: str) -> tuple[Operation, ...]:
    """Split an expression into operations. Raises `CfiError` when one is unknown or truncated."""
    return tuple([operation for _, operation in _walk(expression, byte_order)])


def _walk(expression: bytes, byte_order: str) -> Iterator[tuple[int, Operation]]:
    """Yield each operation with the offset past it."""
    position = 0
    while position < len(expression):
        opcode = expression[position]
        operands, position = _operands(expression, position + 1, opcode, byte_order)
        yield position, Operation(opcode, operands)


def _operands(data: bytes, position: int, opcode: int, byte_order: str) -> tuple[tuple[int, ...], int]:
    if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31 or opcode == d.DW_OP_consts:
        value, position = read_sleb(data, position)
        return (value,), position
    if opcode in (d.DW_OP_constu, d.DW_OP_plus_uconst):
        value, position = read_uleb(data, position)
        return (value,), position
    if opcode == d.DW_OP_bregx:
        register, position = read_uleb(data, position)
        value, position = read_sleb(data, position)
        return (register, value), position
    if opcode in (d.DW_OP_bra, d.DW_OP_skip):
        size, signed = 2, True
    elif opcode in (d.DW_OP_pick, d.DW_OP_deref_size):
        size, signed = 1, False
    elif opcode == d.DW_OP_addr:
        size, signed = 8, False
    elif opcode in _FIXED_CONSTANTS:
        size, signed = _FIXED_CONSTANTS[opcode]
    elif opcode in _NAMES or d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
        return (), position
    else:
        raise CfiError(f"unknown expression operation 0x{opcode:02x}")
    if position + size > len(data):
        raise CfiError("truncated expression")
    raw = data[position : position + size]
    return (int.from_bytes(raw, "little" if byte_order == "<" else "big", signed=signed),), position + size


def classify(expression: bytes, byte_order: str, *, starts_with_cfa: bool) -> Shape | None:
    """Return the shape of an expression, or None when it is neither a sum nor the load of a sum.

    `starts_with_cfa`: the CFA is on the initial stack, as it is for rules of registers (DWARF 5, 6.4.2.3).
    Raises `CfiError` when the expression is damaged.
    """
    stack: list[Shape] = [Sum(None, 0)] if starts_with_cfa else []
    for opcode, operands in parse_expression(expression, byte_order):
        if not _step(stack, opcode, operands):
            return None
    if not stack:
        return None
    top = stack[-1]
    if isinstance(top, Sum) and top.is_constant:
        return None
    return top


class Shapes(dict[tuple[bytes, bool], Sum | Load | None]):
    """The shapes of a file's expressions, each classified once: thousands of rows may have the same expression.

    The keys are (expression, `starts_with_cfa`) as in `classify`. A damaged expression has the shape None.
    """

    def __init__(self, byte_order: str) -> None:
        super().__init__()
        self.byte_order = byte_order

    def __missing__(self, key: tuple[bytes, bool]) -> Shape | None:
        try:
            shape = classify(key[0], self.byte_order, starts_with_cfa=key[1])
        except CfiError:
            shape = None
        self[key] = shape
        return shape


def _step(stack: list[Shape], opcode: int, operands: tuple[int, ...]) -> bool:
    """Apply one operation to the symbolic stack; False when the result would be no known shape."""
    if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31:
        stack.append(Sum(opcode - d.DW_OP_breg0, operands[0]))
    elif opcode == d.DW_OP_bregx:
        stack.append(Sum(operands[0], operands[1]))
    elif d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
        stack.append(Sum(None, opcode - d.DW_OP_lit0, is_constant=True))
    elif opcode in _FIXED_CONSTANTS or opcode in (d.DW_OP_constu, d.DW_OP_consts):
        stack.append(Sum(None, operands[0], is_constant=True))
    elif opcode == d.DW_OP_nop:
        pass
    elif opcode in (d.DW_OP_plus_uconst, d.DW_OP_plus, d.DW_OP_minus):
        return _add(stack, opcode, operands)
    elif opcode == d.DW_OP_deref:
        top = stack[-1] if stack else None
        if not isinstance(top, Sum) or top.is_constant:
            return False
        stack[-1] = Load(top)
    else:
        return False
    return True


def _add(stack: list[Shape], opcode: int, operands: tuple[int, ...]) -> bool:
    """Apply DW_OP_plus, DW_OP_minus or DW_OP_plus_uconst; False when the result would be no sum."""
    if opcode == d.DW_OP_plus_uconst:
        stack.append(Sum(None, operands[0], is_constant=True))
    if len(stack) < 2:
        return False
    right, left = stack.pop(), stack.pop()
    if opcode != d.DW_OP_minus and isinstance(left, Sum) and left.is_constant:
        left, right = right, left
    if not isinstance(left, Sum) or not isinstance(right, Sum) or not right.is_constant:
        return False
    offset = left.offset - right.offset if opcode == d.DW_OP_minus else left.offset + right.offset
    stack.append(left._replace(offset=_signed(offset)))
    return True


def _signed(value: int) -> int:
    """Wrap to a signed 64-bit word, as the expression's stack does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def describe(expression: bytes, byte_order: str) -> str:
    """Return the expression in readable form, such as `breg7 40; deref; plus_uconst 8`; as bytes if it is damaged.

    Only the beginning of a long expression is shown, and the size of the rest.
    """
    texts: list[str] = []
    end = 0
    try:
        for position, (opcode, operands) in _walk(expression, byte_order):
            if end >= _MAX_SHOWN_SIZE:
                break
            texts.append(" ".join((_name(opcode), *map(str, operands))))
            end = position
    except CfiError:
        texts, end = [f"bytes {expression[:_MAX_SHOWN_SIZE].hex(' ')}"], min(len(expression), _MAX_SHOWN_SIZE)
    if end < len(expression):
        texts.append(f"and {len(expression) - end:,} more bytes")
    return "; ".join(texts)


def _name(opcode: int) -> str:
    if d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
        return f"lit{opcode - d.DW_OP_lit0}"
    if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31:
        return f"breg{opcode - d.DW_OP_breg0}"
    return _NAMES[opcode]
