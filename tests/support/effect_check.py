# SPDX-License-Identifier: Apache-2.0
"""What an effect says of an instruction, against what its execution has done: AArch64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import JUMP_TARGET, NOTHING, Flow, Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.code.effects import Effect, Step
    from tests.support.aarch64_execution import Executed

_MASK: Final = (1 << 64) - 1
#: A pseudo-register of DWARF: not one of the machine's.
_RA_SIGN_STATE: Final = 34
_LINK: Final = 30


class _Store(NamedTuple):
    vaddr: int
    size: int
    value: int | None


class Expected:
    """The steps of an effect, carried out on given values: None is a value that the effect does not tell."""

    def __init__(self, effect: Effect, before: dict[int, int], read: Callable[[int, int], bytes]) -> None:
        self.values: dict[int, int | None] = dict(before)
        self.named: set[int] = set()
        self.limits: dict[int, int] = {}
        self.stores: list[_Store] = []
        self.compared: tuple[int, int, int] | None = None
        self.tells_flags = False
        self._read = read
        for step in effect.steps:
            self._apply(step)

    def _apply(self, step: Step) -> None:
        if step.op is Op.STORE:
            base = self.values[step.register]
            if base is not None:
                value = None if step.source == NOTHING else self.values[step.source]
                self.stores.append(_Store(base + step.offset & _MASK, step.size, value))
            return
        if step.op is Op.COMPARE:
            self.tells_flags = True
            if step.register != NOTHING:
                left = self.values[step.register]
                right = step.offset if step.source == NOTHING else self.values[step.source]
                if left is not None and right is not None:
                    self.compared = (left, right, step.size)
            return
        self.named.add(step.register)
        self.values[step.register] = self._value(step)
        if step.op is Op.LIMIT:
            self.limits[step.register] = step.offset

    def _value(self, step: Step) -> int | None:
        if step.op in (Op.CONSTANT, Op.NUMBER, Op.ABSOLUTE):
            return step.offset & _MASK
        if step.op in (Op.FORGET, Op.LIMIT):
            return None
        source = 0 if step.source == NOTHING else self.values.get(step.source)
        if source is None:
            return None
        if step.op is Op.MOVE:
            return _low_bytes(source + step.offset, step.size, is_signed=step.is_signed)
        if step.op is Op.ADD:
            register = self.values[step.register]
            added = _low_bytes(source, step.size, is_signed=step.is_signed) * step.scale
            return None if register is None else register + added & _MASK
        index = self.values[step.index] if step.op is Op.LOAD_INDEXED else 0
        if index is None:
            return None
        place = source + step.offset + index * step.scale & _MASK
        loaded = int.from_bytes(self._read(place, step.size), "little")
        return _low_bytes(loaded, step.size, is_signed=step.is_signed)


def _low_bytes(value: int, size: int, *, is_signed: bool) -> int:
    """Return the low bytes of a number, extended to 64 bits."""
    bits = 8 * size
    value &= (1 << bits) - 1
    return value - (1 << bits) & _MASK if is_signed and value >> bits - 1 else value


def _flags_of(left: int, right: int, size: int) -> int:
    """Return NZCV, as a comparison sets it (Arm ARM, AddWithCarry)."""
    bits = 8 * size
    mask = (1 << bits) - 1
    left, right = left & mask, right & mask
    result = left - right & mask
    negative, carry = result >> bits - 1, left >= right
    overflow = (left ^ right) >> bits - 1 and (left ^ result) >> bits - 1
    return negative << 31 | (result == 0) << 30 | carry << 29 | bool(overflow) << 28


def contradictions(
    effect: Effect,
    pc: int,
    before: dict[int, int],
    flags: int,
    expected: Expected,
    after: Executed,
    read: Callable[[int, int], bytes],
    *,
    is_plain: bool,
    is_exact: bool,
) -> list[str]:
    """Return how an effect differs from an execution.

    `is_plain`: all that was written has an address that is told. `is_exact`: all that is told was written.
    """
    found = []
    for register, value in after.registers.items():
        if register in expected.named:
            wanted = expected.values[register]
            if wanted is not None and wanted != value:
                found.append(f"register {register} is 0x{value:x}, not 0x{wanted:x}")
            if value > expected.limits.get(register, _MASK):
                found.append(f"register {register} is 0x{value:x}, beyond its limit")
        elif register == _LINK and effect.flow in (Flow.CALL, Flow.CALL_INDIRECT):
            if value != pc + 4:
                found.append("the return address is another one")
        elif value != before[register]:
            found.append(f"register {register} has changed to 0x{value:x}")
    unknown = expected.named - set(after.registers) - {JUMP_TARGET, _RA_SIGN_STATE}
    found += [f"register {register} is none" for register in unknown if register < JUMP_TARGET]
    if not expected.tells_flags and after.flags != flags:
        found.append(f"flags have changed from {flags:x} to {after.flags:x}")
    if expected.compared is not None and after.flags != _flags_of(*expected.compared):
        found.append(f"flags are {after.flags:x}, as of another comparison")
    found += _wrong_stores(expected, after, read, is_plain=is_plain, is_exact=is_exact)
    found += _wrong_flow(effect, pc, expected, after)
    return found


def _wrong_stores(
    expected: Expected, after: Executed, read: Callable[[int, int], bytes], *, is_plain: bool, is_exact: bool
) -> list[str]:
    written = {vaddr + n for vaddr, size in after.writes for n in range(size)}
    told = {store.vaddr + n for store in expected.stores for n in range(store.size)}
    found = []
    if is_plain and not written <= told:
        found.append(f"0x{min(written - told):x} was written")
    if is_exact and not told <= written:
        found.append(f"0x{min(told - written):x} was not written")
    for store in expected.stores:
        if store.value is None or not written:
            continue
        if int.from_bytes(read(store.vaddr, store.size), "little") != store.value:
            found.append(f"0x{store.vaddr:x} has another value")
    return found


def _wrong_flow(effect: Effect, pc: int, expected: Expected, after: Executed) -> list[str]:
    flow, target = effect.flow, effect.target
    places: set[int | None] = {pc + 4}
    if flow in (Flow.JUMP, Flow.CALL):
        places = {target}
    elif flow is Flow.BRANCH:
        places = {target, pc + 4}
    elif flow in (Flow.JUMP_INDIRECT, Flow.RETURN, Flow.CALL_INDIRECT):
        if JUMP_TARGET not in expected.named:
            return ["no step tells where control goes"]
        wanted = expected.values[JUMP_TARGET]
        places = {after.pc if wanted is None else wanted}
    elif flow is Flow.STOP:
        return ["it does not stop"]
    return [] if after.pc in places else [f"control goes to 0x{after.pc:x}"]
