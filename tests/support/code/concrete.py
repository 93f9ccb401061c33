# SPDX-License-Identifier: Apache-2.0
"""The steps of an effect applied to the numbers of a machine: what an instruction should have done to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import NOTHING, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cfi2sframe.code.effects import Effect, Step

_MASK: Final = (1 << 64) - 1
_WORD: Final = 8


class Stored(NamedTuple):
    """Bytes that a step stores to; `value` is None where it cannot be told."""

    vaddr: int
    size: int
    value: int | None


class Expected(NamedTuple):
    """What an effect says of a machine's state after an instruction.

    `registers` has what each changed register holds, None where that cannot be told; `limits` the numbers that some are
    not above. `comparison` is the outcome of a comparison, -1, 0 or 1; None where there was none, or it cannot be told.
    `compared` has the two numbers that the flags are of, and their size in bytes.
    """

    registers: dict[int, int | None]
    limits: dict[int, int]
    stores: list[Stored]
    comparison: int | None
    sets_flags: bool
    compared: tuple[int, int, int] | None = None


def _extended(value: int, size: int, *, is_signed: bool) -> int:
    """Return the number in the low bytes of another one."""
    value &= (1 << 8 * size) - 1
    return value - (1 << 8 * size) if is_signed and value >> (8 * size - 1) else value


class _Model:
    def __init__(self, before: Mapping[int, int], read: Callable[[int, int], int | None]) -> None:
        self.before = before
        self.read = read
        self.expected = Expected({}, {}, [], None, sets_flags=False)

    def value(self, register: int) -> int | None:
        if register in self.expected.registers:
            return self.expected.registers[register]
        return self.before.get(register)

    def set(self, register: int, value: int | None) -> None:
        self.expected.registers[register] = None if value is None else value & _MASK
        self.expected.limits.pop(register, None)

    def loaded(self, vaddr: int, size: int, *, is_signed: bool) -> int | None:
        value = self.read(vaddr & _MASK, size)
        return None if value is None else _extended(value, size, is_signed=is_signed)

    def apply(self, step: Step) -> None:
        op, register, source, offset, size, index, scale, is_signed = step
        first = 0 if source == NOTHING else self.value(source)
        if op is Op.MOVE:
            self.set(register, None if first is None else _extended(first + offset, size, is_signed=is_signed))
        elif op in (Op.CONSTANT, Op.NUMBER, Op.ABSOLUTE):
            assert size == _WORD, "a number of 1 byte, of an instruction of AMD64"
            self.set(register, offset)
        elif op is Op.LOAD:
            self.set(register, None if first is None else self.loaded(first + offset, size, is_signed=is_signed))
        elif op is Op.LOAD_INDEXED:
            number = self.value(index)
            known = first is not None and number is not None
            vaddr = (first or 0) + (number or 0) * scale + offset
            self.set(register, self.loaded(vaddr, size, is_signed=is_signed) if known else None)
        elif op is Op.STORE:
            to = self.value(register)
            assert to is not None, "a store to an address that this instruction has just made unknown"
            value = self.value(source) if source != NOTHING else None
            self.expected.stores.append(Stored(to + offset & _MASK, size, value))
        elif op is Op.ADD:
            second = self.value(register)
            known = first is not None and second is not None
            self.set(
                register, (second or 0) + _extended(first or 0, size, is_signed=is_signed) * scale if known else None
            )
        elif op is Op.SCALE:
            value, known_limit = self.value(register), self.expected.limits.get(register)
            self.set(register, None if value is None else value * scale)
            if known_limit is not None:
                self.expected.limits[register] = known_limit * scale
        elif op is Op.LIMIT:
            self.set(register, None)
            self.expected.limits[register] = offset
        elif op is Op.FORGET:
            self.set(register, None)
        else:
            self._compare(step)

    def _compare(self, step: Step) -> None:
        if step.op is Op.COMPARE:
            self.expected = self.expected._replace(sets_flags=True, comparison=None, compared=None)
        if step.register == NOTHING:
            return
        first = self.value(step.register)
        second = step.offset if step.source == NOTHING else self.value(step.source)
        if first is None or second is None:
            return
        if step.op is Op.COMPARE:
            self.expected = self.expected._replace(compared=(first, second, step.size))
        bits = 8 * step.size
        first, second = first & ((1 << bits) - 1), second & ((1 << bits) - 1)
        if step.is_signed:
            first, second = (n - (1 << bits) if n >> (bits - 1) else n for n in (first, second))
        self.expected = self.expected._replace(comparison=(first > second) - (first < second))


def expect(effect: Effect, before: Mapping[int, int], read: Callable[[int, int], int | None]) -> Expected:
    """Return what an effect says; `before` has all registers, `read(vaddr, size)` returns a number in memory."""
    model = _Model(before, read)
    for step in effect.steps:
        model.apply(step)
    return model.expected
