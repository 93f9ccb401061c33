# SPDX-License-Identifier: Apache-2.0
"""Evaluate the DWARF expressions of stubs (DWARF 5, 2.5): the CFA as a distance from SP, at one PC.

SP and memory are unknown, so an expression that loads, branches or needs a register other than SP and the PC cannot be
evaluated.
"""

from __future__ import annotations

from contextlib import suppress
from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.expression import parse_expression
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.expression import Operation

_WORD_MASK: Final = (1 << 64) - 1
#: RIP's DWARF number; other ABIs number no register that holds the PC.
_AMD64_PC: Final = 16


class Distance(NamedTuple):
    """CFA = SP + `depth` bytes, also at any PC that is congruent modulo `pc_modulus` (0: only at this PC)."""

    depth: int
    pc_modulus: int


class _FromSp(NamedTuple):
    """SP + offset."""

    offset: int
    base: str = "sp"


class _FromPc(NamedTuple):
    """PC + offset, not yet a number: an `and` may reduce it to the PC's low bits."""

    offset: int
    base: str = "pc"


_Value = int | _FromSp | _FromPc


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_BINARY: Final[dict[int, Callable[[int, int], int]]] = {
    d.DW_OP_and: lambda left, right: left & right,
    d.DW_OP_or: lambda left, right: left | right,
    d.DW_OP_xor: lambda left, right: left ^ right,
    d.DW_OP_plus: lambda left, right: left + right,
    d.DW_OP_minus: lambda left, right: left - right,
    d.DW_OP_mul: lambda left, right: left * right,
    d.DW_OP_shl: lambda left, right: left << right if right < 64 else 0,
    d.DW_OP_shr: lambda left, right: left >> right,
    d.DW_OP_shra: lambda left, right: _signed(left) >> right,
    d.DW_OP_eq: lambda left, right: int(left == right),
    d.DW_OP_ne: lambda left, right: int(left != right),
    d.DW_OP_ge: lambda left, right: int(_signed(left) >= _signed(right)),
    d.DW_OP_gt: lambda left, right: int(_signed(left) > _signed(right)),
    d.DW_OP_le: lambda left, right: int(_signed(left) <= _signed(right)),
    d.DW_OP_lt: lambda left, right: int(_signed(left) < _signed(right)),
}
_CONSTANTS: Final = frozenset(
    {d.DW_OP_const1u, d.DW_OP_const1s, d.DW_OP_const2u, d.DW_OP_const2s, d.DW_OP_const4u, d.DW_OP_const4s}
    | {d.DW_OP_const8u, d.DW_OP_const8s, d.DW_OP_constu, d.DW_OP_consts}
)


class SpDistances:
    """Evaluates the expressions of one file, each of which is parsed once."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._operations: dict[bytes, tuple[Operation, ...] | None] = {}

    def evaluate(self, expression: bytes, pc_vaddr: int) -> Distance | None:
        """Return an expression's value at a PC as a distance from SP, or None when it cannot be evaluated to one."""
        operations = self._parsed(expression)
        if operations is None:
            return None
        machine = _Machine(self.arch, pc_vaddr)
        for opcode, operands in operations:
            if not machine.step(opcode, operands):
                return None
        top = machine.stack[-1] if machine.stack else None
        if not isinstance(top, _FromSp):
            return None
        return Distance(_signed(top.offset), machine.pc_modulus)

    def _parsed(self, expression: bytes) -> tuple[Operation, ...] | None:
        """Return the operations of an expression, or None where it is damaged."""
        if expression not in self._operations:
            operations: tuple[Operation, ...] | None = None
            with suppress(CfiError):
                operations = parse_expression(expression, self.arch.byte_order)
            self._operations[expression] = operations
        return self._operations[expression]


class _Machine:
    """The stack of one evaluation. `pc_modulus` is that of the result so far (see `Distance`)."""

    def __init__(self, arch: Arch, pc_vaddr: int) -> None:
        self.arch = arch
        self.pc_register = _AMD64_PC if arch.fixed_ra_offset else None
        self.pc_vaddr = pc_vaddr
        self.stack: list[_Value] = []
        self.pc_modulus = 1

    def step(self, opcode: int, operands: tuple[int, ...]) -> bool:
        """Apply one operation; return False when it cannot be evaluated."""
        stack = self.stack
        if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31:
            return self._push_register(opcode - d.DW_OP_breg0, operands[0])
        if opcode == d.DW_OP_bregx:
            return self._push_register(*operands)
        if d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
            stack.append(opcode - d.DW_OP_lit0)
        elif opcode in _CONSTANTS:
            stack.append(operands[0] & _WORD_MASK)
        elif opcode == d.DW_OP_nop:
            pass
        elif opcode == d.DW_OP_dup and stack:
            stack.append(stack[-1])
        elif opcode == d.DW_OP_drop and stack:
            stack.pop()
        elif opcode == d.DW_OP_swap and len(stack) > 1:
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif opcode == d.DW_OP_over and len(stack) > 1:
            stack.append(stack[-2])
        elif opcode == d.DW_OP_plus_uconst and stack:
            return self._combine(d.DW_OP_plus, stack.pop(), operands[0] & _WORD_MASK)
        elif opcode in _BINARY and len(stack) > 1:
            right = stack.pop()
            return self._combine(opcode, stack.pop(), right)
        else:
            return False
        return True

    def _push_register(self, register: int, offset: int) -> bool:
        if register == self.arch.sp_register:
            self.stack.append(_FromSp(offset))
        elif register == self.pc_register:
            self.stack.append(_FromPc(offset))
        else:
            return False
        return True

    def _combine(self, opcode: int, left: _Value, right: _Value) -> bool:
        if opcode in (d.DW_OP_plus, d.DW_OP_and) and isinstance(left, int):
            left, right = right, left
        if isinstance(left, _FromPc) and isinstance(right, int):
            if opcode == d.DW_OP_and:
                # The low bits of PC + offset follow from the low bits of PC.
                self.pc_modulus = lcm(self.pc_modulus, 1 << right.bit_length())
                self.stack.append((self.pc_vaddr + left.offset) & right)
                return True
            if opcode in (d.DW_OP_plus, d.DW_OP_minus):
                self.stack.append(_FromPc(left.offset + (right if opcode == d.DW_OP_plus else -right)))
                return True
        left, right = self._without_pc(left), self._without_pc(right)
        if isinstance(left, _FromSp) and isinstance(right, int) and opcode in (d.DW_OP_plus, d.DW_OP_minus):
            self.stack.append(_FromSp(left.offset + (right if opcode == d.DW_OP_plus else -right)))
        elif isinstance(left, int) and isinstance(right, int):
            self.stack.append(_BINARY[opcode](left, right) & _WORD_MASK)
        else:
            return False
        return True

    def _without_pc(self, value: _Value) -> _Value:
        """Replace PC + offset by its number, after which the result is valid only at this PC."""
        if isinstance(value, _FromPc):
            self.pc_modulus = 0
            return (self.pc_vaddr + value.offset) & _WORD_MASK
        return value
