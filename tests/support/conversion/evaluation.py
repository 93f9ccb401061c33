# SPDX-License-Identifier: Apache-2.0
"""Values instead of rules: registers and memory are made up, and rows of either format evaluated over them.

The rows of the DWARF table are those of the naive evaluator; of the package, only the records of SFrame are used.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from cfi2sframe.abi import S390X, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.sframe.model import FrameState
from tests.support.dwarf.naive import RA_SIGN_STATE, Reader, Row
from tests.support.dwarf.naive import Rule as DwarfRule

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


def dwarf_values(row: Row, arch: Arch, ra_column: int | None = None) -> Values | None:
    """Evaluate a row of the DWARF table; None in the outermost frame. `ra_column` is the CIE's column of the RA."""
    ra = row.rules.get(arch.ra_register if ra_column is None else ra_column)
    if ra_column not in (None, arch.ra_register) and ra in (None, ("same value",)):
        # Not saved: RA is in the column's register.
        ra = ("register", ra_column)
    if ra == ("undefined",):
        return None
    cfa = cfa_value(row.cfa, arch)
    sp = None if cfa is None else (cfa + arch.sp_offset_from_cfa) % WORD
    rule = row.rules.get(arch.sp_register)
    if rule is not None and not is_sp_of_abi(rule, row.cfa, arch):
        sp = rule_value(rule, cfa, arch, register_value(arch.sp_register))
    return Values(
        sp,
        rule_value(ra, cfa, arch, register_value(arch.ra_register)),
        rule_value(row.rules.get(arch.fp_register), cfa, arch, register_value(arch.fp_register)),
        row.rules.get(RA_SIGN_STATE) == ("state", 1),
    )


def rule_value(rule: DwarfRule | None, cfa: int | None, arch: Arch, own: int) -> int | None:
    """Return the value that a rule gives a register; `own` is the register's value here."""
    if cfa is None:
        return None
    match rule:
        case None | ("same value",):
            return own
        case ("register", int(register)):
            return register_value(register)
        case ("offset", int(offset)):
            return memory(cfa + offset)
        case ("val_offset", int(offset)):
            return (cfa + offset) % WORD
        case ("expression", bytes(code)):
            found = evaluate(code, arch.byte_order, [cfa])
            return None if found is None else memory(found)
        case ("val_expression", bytes(code)):
            return evaluate(code, arch.byte_order, [cfa])
        case _:
            return None


def cfa_value(rule: DwarfRule | None, arch: Arch) -> int | None:
    """Return DWARF's CFA; None where it cannot be known."""
    match rule:
        case ("sum", int(register), int(offset)):
            return (register_value(register) + offset) % WORD
        case ("value", bytes(code)):
            return evaluate(code, arch.byte_order, [])
        case _:
            return None


def is_sp_of_abi(sp: DwarfRule, cfa: DwarfRule | None, arch: Arch) -> bool:
    """Whether SP is saved in s390x's stack frame; made-up memory does not know that this is CFA - 160 by the ABI."""
    if arch is not S390X:
        return False
    match sp, cfa:
        case ("register", _), ("sum", base, _):
            return base in (arch.sp_register, arch.fp_register)
        case ("register", _), ("value", bytes(code)):
            return code[:1] in (bytes((0x70 + arch.sp_register,)), bytes((0x70 + arch.fp_register,)))
        case ("offset", _), _:
            return True
        case _:
            return False


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
