# SPDX-License-Identifier: Apache-2.0
"""DWARF expressions (DWARF 5, 2.5): their operations, their text, and the rule that has the value of a simple one.

Registers have no values here: only a sum of a register and a constant, or one load of it, is a rule.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.numbers import read_sleb, read_uleb
from cfi2sframe.errors import CfiError


class Expression(NamedTuple):
    """The value that a DWARF expression computes or, with `deref`, the word that is saved there."""

    code: bytes
    deref: bool

    def text(self, arch: Arch) -> str:
        """Return the expression in readable form: `breg7 40; deref`, or `exp(breg7 40)` for the word saved there."""
        text = expression_text(self.code, arch.byte_order)
        return f"exp({text})" if self.deref else text


#: Operations that push a constant, and all with operands: the bytes of each (negative: signed), or its form.
_CONSTANTS: Final[dict[int, tuple[int | str, ...]]] = {
    d.DW_OP_const1u: (1,),
    d.DW_OP_const1s: (-1,),
    d.DW_OP_const2u: (2,),
    d.DW_OP_const2s: (-2,),
    d.DW_OP_const4u: (4,),
    d.DW_OP_const4s: (-4,),
    d.DW_OP_const8u: (8,),
    d.DW_OP_const8s: (-8,),
    d.DW_OP_constu: ("uleb",),
    d.DW_OP_consts: ("sleb",),
}
_OPERANDS: Final[dict[int, tuple[int | str, ...]]] = {
    **_CONSTANTS,
    **dict.fromkeys(range(d.DW_OP_breg0, d.DW_OP_breg31 + 1), ("sleb",)),
    d.DW_OP_bregx: ("uleb", "sleb"),
    d.DW_OP_plus_uconst: ("uleb",),
    d.DW_OP_addr: (8,),
    d.DW_OP_bra: (-2,),
    d.DW_OP_skip: (-2,),
    d.DW_OP_pick: (1,),
    d.DW_OP_deref_size: (1,),
}
#: All operations but DW_OP_reg0 to reg31, which CFI may not use (DWARF 5, 6.4.2).
_NAMES: Final = {
    **{value: name.removeprefix("DW_OP_") for name, value in vars(d).items() if name.startswith("DW_OP_")},
    **{d.DW_OP_lit0 + number: f"lit{number}" for number in range(32)},
    **{d.DW_OP_breg0 + number: f"breg{number}" for number in range(32)},
}
del _NAMES[d.DW_OP_reg0]

_SUMS: Final = (d.DW_OP_plus, d.DW_OP_minus, d.DW_OP_plus_uconst, d.DW_OP_deref, d.DW_OP_nop)
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
        if opcode not in _NAMES:
            raise CfiError(f"unknown expression operation 0x{opcode:02x}")
        position += 1
        operands: list[int] = []
        for kind in _OPERANDS.get(opcode, ()):
            if isinstance(kind, int):
                raw = expression[position : position + abs(kind)]
                if len(raw) < abs(kind):
                    raise CfiError("truncated expression")
                value = int.from_bytes(raw, "little" if byte_order == "<" else "big", signed=kind < 0)
                position += abs(kind)
            else:
                value, position = (read_uleb if kind == "uleb" else read_sleb)(expression, position)
            operands.append(value)
        yield position, Operation(opcode, tuple(operands))


@lru_cache(maxsize=1024)  # Thousands of rows may have one expression.
def value_of(code: bytes, byte_order: str, *, starts_with_cfa: bool) -> Rule | int | None:
    """Return the rule that has an expression's value, or the value if it is a constant; None for all others.

    `starts_with_cfa`: the CFA is on the initial stack, as it is for rules of registers (DWARF 5, 6.4.2.3).
    """
    stack: list[Rule | int] = [Rule(None, 0, deref=False)] if starts_with_cfa else []
    try:
        operations = parse_expression(code, byte_order)
    except CfiError:
        return None
    is_simple = all(_apply(operation, stack) for operation in operations)
    return stack[-1] if is_simple and stack else None


def is_unscaled(code: bytes, byte_order: str) -> bool:
    """Return whether the expression has at most one register and only adds, subtracts and loads."""
    try:
        opcodes = [opcode for opcode, _ in parse_expression(code, byte_order)]
    except CfiError:
        return False
    registers = [opcode for opcode in opcodes if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31 or opcode == d.DW_OP_bregx]
    literals = range(d.DW_OP_lit0, d.DW_OP_lit31 + 1)
    return len(registers) <= 1 and {*registers, *_CONSTANTS, *literals, *_SUMS}.issuperset(opcodes)


class RulesByPc(NamedTuple):
    """The rules of an expression by PC: in each aligned block of `size` bytes, `rules[N]` from `deltas[N]` on."""

    size: int
    deltas: tuple[int, ...]
    rules: tuple[Rule, ...]


def rules_by_pc(rule: object, arch: Arch) -> RulesByPc | None:
    """Return the values of the CFA that linkers give the PLT of AMD64; None for any other rule.

    It is a register + offset + (((rip & mask) >= distance) << shift): past `distance`, a stub has pushed a word.
    """
    if not isinstance(rule, Expression) or rule.deref or "rip" not in arch.registers:
        return None
    try:
        operations = parse_expression(rule.code, arch.byte_order)
    except CfiError:
        return None
    opcodes = [operation.opcode for operation in operations]
    pc = Operation(d.DW_OP_breg0 + arch.registers.index("rip"), (0,))
    if len(opcodes) != 9 or operations[1] != pc or opcodes[3::2] != [d.DW_OP_and, d.DW_OP_ge, d.DW_OP_shl]:
        return None
    base, (mask, distance, shift) = opcodes[0] - d.DW_OP_breg0, [opcode - d.DW_OP_lit0 for opcode in opcodes[2:8:2]]
    is_literal = all(0 <= number < 32 for number in (base, mask, distance, shift))
    if not is_literal or mask & (mask + 1) or not 0 < distance <= mask or opcodes[8] != d.DW_OP_plus:
        return None
    before = Rule(base, operations[0].operands[0], deref=False)
    return RulesByPc(mask + 1, (0, distance), (before, before._replace(offset=before.offset + (1 << shift))))


def _apply(operation: Operation, stack: list[Rule | int]) -> bool:
    """Apply an operation to a stack of constants and rules; return False when the result would be neither."""
    opcode, operands = operation
    if d.DW_OP_breg0 <= opcode <= d.DW_OP_breg31:
        stack.append(Rule(opcode - d.DW_OP_breg0, operands[0], deref=False))
    elif opcode == d.DW_OP_bregx:
        stack.append(Rule(operands[0], operands[1], deref=False))
    elif d.DW_OP_lit0 <= opcode <= d.DW_OP_lit31:
        stack.append(opcode - d.DW_OP_lit0)
    elif opcode in _CONSTANTS:
        stack.append(operands[0])
    elif opcode == d.DW_OP_plus_uconst:
        stack.append(operands[0])
        return _add(stack, 1)
    elif opcode in (d.DW_OP_plus, d.DW_OP_minus):
        return _add(stack, 1 if opcode == d.DW_OP_plus else -1)
    elif opcode == d.DW_OP_deref:
        top = stack[-1] if stack else None
        if not isinstance(top, Rule) or top.deref:
            return False
        stack[-1] = top._replace(deref=True)
    elif opcode != d.DW_OP_nop:
        return False
    return True


def _add(stack: list[Rule | int], sign: Literal[1, -1]) -> bool:
    """Replace the two values on top by their sum or difference; return False when that is no sum with a constant."""
    if len(stack) < 2:
        return False
    right, left = stack.pop(), stack.pop()
    if isinstance(left, int) and sign == 1:
        left, right = right, left
    if not isinstance(right, int):
        return False
    if isinstance(left, int):
        stack.append(signed_word(left + sign * right))
    elif left.deref:
        return False
    else:
        stack.append(left._replace(offset=signed_word(left.offset + sign * right)))
    return True


def signed_word(value: int) -> int:
    """Wrap a number to a signed word of 64 bits, as the values of unwinders are."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def expression_text(expression: bytes, byte_order: str) -> str:
    """Return the expression in readable form, such as `breg7 40; deref; plus_uconst 8`; as bytes if it is damaged.

    Only the beginning of a long expression is shown, and the size of the rest.
    """
    texts: list[str] = []
    end = 0
    try:
        for position, (opcode, operands) in _walk(expression, byte_order):
            if end >= _MAX_SHOWN_SIZE:
                break
            texts.append(" ".join((_NAMES[opcode], *map(str, operands))))
            end = position
    except CfiError:
        texts, end = [f"bytes {expression[:_MAX_SHOWN_SIZE].hex(' ')}"], min(len(expression), _MAX_SHOWN_SIZE)
    if end < len(expression):
        texts.append(f"and {len(expression) - end:,} more bytes")
    return "; ".join(texts)
