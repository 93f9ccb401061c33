# SPDX-License-Identifier: Apache-2.0
"""Values instead of rules: registers and memory are made up, and rows of either format evaluated over them.

Of the package, only the records of rows are used.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from cfi2sframe.abi import S390X, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.sframe.model import FrameState
from tests.support.dwarf.naive import Reader

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
    stack, reader = list(initial), Reader(code, 0, len(code), little=byte_order == "<")
    try:
        while reader.position < reader.end:
            step(reader, stack)
            stack[-1:] = [value % WORD for value in stack[-1:]]
        return stack[-1]
    except (AssertionError, IndexError, ValueError):
        return None


def step(code: Reader, stack: list[int]) -> None:
    """Apply one operation; ValueError where it is unknown here."""
    opcode = code.fixed(1)
    if 0x30 <= opcode <= 0x4F:
        stack.append(opcode - 0x30)
    elif 0x70 <= opcode <= 0x8F or opcode == 0x92:
        number = code.uleb() if opcode == 0x92 else opcode - 0x70
        stack.append(register_value(number) + code.sleb())
    elif opcode == 0x06:
        stack.append(memory(stack.pop()))
    elif opcode == 0x12:
        stack.append(stack[-1])
    elif opcode == 0x23:
        stack.append(stack.pop() + code.uleb())
    elif opcode == 0x11:
        stack.append(code.sleb())
    elif opcode == 0x03:
        stack.append(code.fixed(8))
    elif opcode in BINARY:
        right, left = stack.pop(), stack.pop()
        stack.append(BINARY[opcode](left, right))
    elif opcode != 0x96:
        raise ValueError


class Values(NamedTuple):
    """The caller's SP, RA and FP (None: cannot be known), and whether the RA is signed."""

    sp: int | None
    ra: int | None
    fp: int | None
    is_signed: bool


def dwarf_values(row: RowState, arch: Arch) -> Values | None:
    """Evaluate a row of the DWARF table; None in the outermost frame."""
    if row.ra is NoRule.UNDEFINED:
        return None
    match row.cfa:
        case Rule():
            cfa: int | None = _value(row.cfa, 0)
        case Expression(code):
            cfa = evaluate(code, arch.byte_order, [])
        case _:
            cfa = None

    def of_rule(rule: RegisterRule, register: int) -> int | None:
        if rule is NoRule.UNDEFINED or cfa is None:
            return None
        if isinstance(rule, Rule):
            return _value(rule, cfa)
        if isinstance(rule, Expression):
            found = evaluate(rule.code, arch.byte_order, [cfa])
            return memory(found) if found is not None and rule.deref else found
        return register_value(register)

    sp = None if cfa is None else (cfa + arch.sp_offset_from_cfa) % WORD
    if row.sp is not NoRule.UNSPECIFIED and not is_sp_of_abi(row, arch):
        sp = of_rule(row.sp, arch.sp_register)
    ra, fp = of_rule(row.ra, arch.ra_register), of_rule(row.fp, arch.fp_register)
    return Values(sp, ra, fp, row.signing is RaSigning.SIGNED)


def _value(rule: Rule, cfa: int) -> int:
    base = cfa if rule.register is None else register_value(rule.register)
    total = (base + rule.offset) % WORD
    return memory(total) if rule.deref else total


def is_sp_of_abi(row: RowState, arch: Arch) -> bool:
    """Whether SP is saved in s390x's stack frame; made-up memory does not know that this is CFA - 160 by the ABI."""
    if arch is not S390X or not isinstance(row.sp, Rule):
        return False
    if row.sp.is_saved_at_cfa:
        return True
    bases = (arch.sp_register, arch.fp_register)
    if isinstance(row.cfa, Expression):
        return row.sp.is_register and row.cfa.code[:1] in [bytes((0x70 + base,)) for base in bases]
    return row.sp.is_register and isinstance(row.cfa, Rule) and row.cfa.register in bases


def sframe_values(state: FrameState, arch: Arch) -> Values | None:
    """Evaluate a row of SFrame; None in the outermost frame."""
    if state.cfa is None:
        return None
    cfa = _value(state.cfa, 0)
    ra = register_value(arch.ra_register) if state.ra is None else _value(state.ra, cfa)
    fp = register_value(arch.fp_register) if state.fp is None else _value(state.fp, cfa)
    return Values((cfa + arch.sp_offset_from_cfa) % WORD, ra, fp, state.mangled_ra)
