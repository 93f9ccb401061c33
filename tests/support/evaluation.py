# SPDX-License-Identifier: Apache-2.0
"""Values instead of rules: registers and memory are made up, and rows of either format evaluated over them.

Shares nothing with the package but its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import S390X
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import NoRule, RaSigning
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.rules import RegisterRule, RowState
    from cfi2sframe.sframe.model import FrameState


WORD: Final = 1 << 64
_INCREMENT: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_KEY: Final = 0xABCDEF


def _mixed(number: int) -> int:
    """Return a number of 64 bits that depends on every bit of another (splitmix64's finisher)."""
    number = (number + _INCREMENT) % WORD
    number = (number ^ number >> 30) * _FACTORS[0] % WORD
    number = (number ^ number >> 27) * _FACTORS[1] % WORD
    return number ^ number >> 31


def _unmixed(number: int) -> int:
    """Return the number that `_mixed` makes this one of."""
    number = _unshifted(number, 31) * pow(_FACTORS[1], -1, WORD) % WORD
    number = _unshifted(number, 27) * pow(_FACTORS[0], -1, WORD) % WORD
    return (_unshifted(number, 30) - _INCREMENT) % WORD


def _unshifted(number: int, bits: int) -> int:
    found = number
    for _ in range(64 // bits):
        found = number ^ found >> bits
    return found


def register_value(number: int) -> int:
    return _mixed(number)


def memory(vaddr: int) -> int:
    return _mixed(vaddr % WORD ^ _KEY)


def address_of(value: int) -> int:
    """Return the only address where memory has a value."""
    return _unmixed(value) ^ _KEY


def read_leb(code: bytes, position: int, *, signed: bool) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = code[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value - (1 << shift) if signed and byte & 0x40 else value), position


BINARY: dict[int, Callable[[int, int], int]] = {
    0x1A: lambda left, right: left & right,
    0x1C: lambda left, right: left - right,
    0x1E: lambda left, right: left * right,
    0x22: lambda left, right: left + right,
    0x24: lambda left, right: left << min(right, 64),
    0x2A: lambda left, right: int(left >= right),
}


def evaluate(code: bytes, byte_order: str, initial: list[int]) -> int | None:
    """Evaluate a DWARF expression over the made-up state; None where it is damaged or beyond this evaluator."""
    stack, position = list(initial), 0
    try:
        while position < len(code):
            position = step(code, position, byte_order, stack)
            stack[-1:] = [value % WORD for value in stack[-1:]]
        return stack[-1]
    except (IndexError, ValueError):
        return None


def step(code: bytes, position: int, byte_order: str, stack: list[int]) -> int:
    """Apply one operation and return the offset past it; ValueError where it is unknown here."""
    opcode, position = code[position], position + 1
    if 0x30 <= opcode <= 0x4F:
        stack.append(opcode - 0x30)
    elif 0x70 <= opcode <= 0x8F or opcode == 0x92:
        number = opcode - 0x70
        if opcode == 0x92:
            number, position = read_leb(code, position, signed=False)
        offset, position = read_leb(code, position, signed=True)
        stack.append(register_value(number) + offset)
    elif opcode == 0x06:
        stack.append(memory(stack.pop()))
    elif opcode == 0x12:
        stack.append(stack[-1])
    elif opcode == 0x23:
        amount, position = read_leb(code, position, signed=False)
        stack.append(stack.pop() + amount)
    elif opcode == 0x11:
        amount, position = read_leb(code, position, signed=True)
        stack.append(amount)
    elif opcode == 0x03:
        if position + 8 > len(code):
            raise ValueError
        stack.append(int.from_bytes(code[position : position + 8], "little" if byte_order == "<" else "big"))
        position += 8
    elif opcode in BINARY:
        right, left = stack.pop(), stack.pop()
        stack.append(BINARY[opcode](left, right))
    elif opcode != 0x96:
        raise ValueError
    return position


class Values(NamedTuple):
    """The caller's SP, RA and FP (None: cannot be known), and whether the RA is signed."""

    sp: int | None
    ra: int | None
    fp: int | None
    is_signed: bool


def rule_value(rule: RegisterRule, cfa: int | None, arch: Arch, own: int) -> int | None:
    """Return the value that a rule gives a register; `own` is the register's value here."""
    if cfa is None or rule is NoRule.UNDEFINED:
        return None
    match rule:
        case NoRule():
            return own
        case Rule(register, offset, deref):
            value = (cfa if register is None else register_value(register)) + offset
            return memory(value) if deref else value % WORD
        case Expression(code, deref):
            found = evaluate(code, arch.byte_order, [cfa])
            return memory(found) if deref and found is not None else found


def cfa_value(state: RowState, arch: Arch) -> int | None:
    """Return DWARF's CFA; None where it cannot be known."""
    if isinstance(state.cfa, Rule):
        assert state.cfa.register is not None
        assert not state.cfa.deref
        return (register_value(state.cfa.register) + state.cfa.offset) % WORD
    return None if state.cfa is None else evaluate(state.cfa.code, arch.byte_order, [])


def dwarf_values(state: RowState, arch: Arch) -> Values | None:
    """Evaluate a row of the DWARF table; None in the outermost frame."""
    if state.ra is NoRule.UNDEFINED:
        return None
    cfa = cfa_value(state, arch)
    sp = None if cfa is None else (cfa + arch.sp_offset_from_cfa) % WORD
    if not (state.sp is NoRule.UNSPECIFIED or is_sp_of_abi(state, arch)):
        sp = rule_value(state.sp, cfa, arch, register_value(arch.sp_register))
    return Values(
        sp,
        rule_value(state.ra, cfa, arch, register_value(arch.ra_register)),
        rule_value(state.fp, cfa, arch, register_value(arch.fp_register)),
        state.signing is RaSigning.SIGNED,
    )


def is_sp_of_abi(state: RowState, arch: Arch) -> bool:
    """Whether SP is saved in s390x's stack frame; made-up memory does not know that this is CFA - 160 by the ABI."""
    if arch is not S390X or not isinstance(state.sp, Rule):
        return False
    if state.sp.register is not None and state.cfa is not None:
        base = state.cfa.code[0] - 0x70 if isinstance(state.cfa, Expression) else state.cfa.register
        return base in (arch.sp_register, arch.fp_register)
    return state.sp.deref


def sframe_values(state: FrameState, arch: Arch) -> Values | None:
    """Evaluate a row of SFrame; None in the outermost frame."""
    if state.cfa is None:
        return None

    def value(rule: Rule, cfa: int) -> int:
        base = cfa if rule.register is None else register_value(rule.register)
        total = (base + rule.offset) % WORD
        return memory(total) if rule.deref else total

    cfa = value(state.cfa, 0)
    ra = register_value(arch.ra_register) if state.ra is None else value(state.ra, cfa)
    fp = register_value(arch.fp_register) if state.fp is None else value(state.fp, cfa)
    return Values((cfa + arch.sp_offset_from_cfa) % WORD, ra, fp, state.mangled_ra)
