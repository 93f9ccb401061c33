# SPDX-License-Identifier: Apache-2.0
"""The value of a DWARF expression in a state of the analysis (DWARF 5, 2.5.1), as far as that is known."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from cfi2sframe.code.values import CALLER_FP, CFA, CONSTANT, SET_AT, Value
from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import parse_expression
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.arch import Arch
    from cfi2sframe.code.values import State

_MASK: Final = (1 << 64) - 1
_CONSTANTS: Final = frozenset(
    {d.DW_OP_const1u, d.DW_OP_const1s, d.DW_OP_const2u, d.DW_OP_const2s, d.DW_OP_const4u, d.DW_OP_const4s}
    | {d.DW_OP_const8u, d.DW_OP_const8s, d.DW_OP_constu, d.DW_OP_consts, d.DW_OP_addr}
)
#: Operations on two numbers: what PLTs' expressions have besides sums.
_ON_NUMBERS: Final[dict[int, Callable[[int, int], int]]] = {
    d.DW_OP_and: operator.and_,
    d.DW_OP_or: operator.or_,
    d.DW_OP_xor: operator.xor,
    d.DW_OP_shl: lambda left, right: left << right if right < 64 else 0,
    d.DW_OP_shr: lambda left, right: left >> right if right < 64 else 0,
    d.DW_OP_mul: operator.mul,
    d.DW_OP_eq: operator.eq,
    d.DW_OP_ne: operator.ne,
    d.DW_OP_ge: lambda left, right: _signed(left) >= _signed(right),
    d.DW_OP_gt: lambda left, right: _signed(left) > _signed(right),
    d.DW_OP_le: lambda left, right: _signed(left) <= _signed(right),
    d.DW_OP_lt: lambda left, right: _signed(left) < _signed(right),
}


def value_of(expression: bytes, state: State, vaddr: int, arch: Arch, *, starts_with_cfa: bool) -> Value | None:
    """Return the value of an expression before the instruction at an address; None where it cannot be told.

    `starts_with_cfa`: the CFA is on the initial stack, as it is for rules of registers (DWARF 5, 6.4.2.3).
    """
    stack: list[Value | None] = [Value(CFA, 0)] if starts_with_cfa else []
    try:
        for opcode, operands in parse_expression(expression, arch.byte_order):
            if not _step(stack, opcode, operands, state, vaddr, arch):
                return None
    except (CfiError, IndexError):
        return None
    return stack[-1] if stack else None


def _step(
    stack: list[Value | None], opcode: int, operands: tuple[int, ...], state: State, vaddr: int, arch: Arch
) -> bool:
    """Apply one operation; False for those that are not evaluated. Raises `IndexError` where the stack is too short."""
    if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31:
        stack.append(_register(opcode - d.DW_OP_breg0, operands[0], state, vaddr, arch))
    elif opcode == d.DW_OP_bregx:
        stack.append(_register(operands[0], operands[1], state, vaddr, arch))
    elif d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
        stack.append(Value(CONSTANT, opcode - d.DW_OP_lit0))
    elif opcode in _CONSTANTS:
        stack.append(Value(CONSTANT, operands[0] & _MASK))
    elif opcode == d.DW_OP_plus_uconst:
        stack.append(plus(stack.pop(), operands[0]))
    elif opcode in (d.DW_OP_plus, d.DW_OP_minus):
        right, left = stack.pop(), stack.pop()
        stack.append(_sum(left, right, is_difference=opcode == d.DW_OP_minus))
    elif opcode == d.DW_OP_deref:
        address = stack.pop()
        stack.append(None if address is None else state.slots.get(address))
    elif opcode in _ON_NUMBERS:
        right, left = stack.pop(), stack.pop()
        is_known = left is not None and right is not None and left.base == right.base == CONSTANT
        stack.append(
            Value(CONSTANT, int(_ON_NUMBERS[opcode](left.offset, right.offset)) & _MASK)
            if is_known and left is not None and right is not None
            else None
        )
    elif opcode != d.DW_OP_nop:
        return False
    return True


def _register(register: int, offset: int, state: State, vaddr: int, arch: Arch) -> Value | None:
    # On AMD64 the column of the RA is rip: PLTs' expressions count from the instruction's own address.
    if register == arch.ra_register and arch.fixed_ra_offset:
        return Value(CONSTANT, vaddr + offset & _MASK)
    return plus(state.registers.get(register), offset)


def plus(value: Value | None, offset: int) -> Value | None:
    """Return a value plus a number of bytes; None where that cannot be told."""
    if value is None:
        return None
    if value.base == CONSTANT:
        return Value(CONSTANT, value.offset + offset & _MASK)
    if value.base in (CFA, CALLER_FP) or value.base >= SET_AT:
        return Value(value.base, value.offset + offset)
    return value if offset == 0 else None


def _sum(left: Value | None, right: Value | None, *, is_difference: bool) -> Value | None:
    if left is None or right is None:
        return None
    if right.base == CONSTANT:
        return plus(left, -_signed(right.offset) if is_difference else _signed(right.offset))
    if left.base == CONSTANT and not is_difference:
        return plus(right, _signed(left.offset))
    return None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
