# SPDX-License-Identifier: Apache-2.0
"""The steps of an effect applied to the numbers of a machine: what an instruction should have done to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.instructions.effects import NOTHING, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cfi2sframe.instructions.effects import Effect, Step

_MASK: Final = (1 << 64) - 1
_WORD: Final = 8


class Stored(NamedTuple):
    """Bytes that a step stores to; `value` is None where it cannot be told."""

    vaddr: int
    size: int
    value: int | None


class Expected(NamedTuple):
    """What an effect says of a machine's state after an instruction.

    `registers` has what each changed register holds, None where that cannot be told.
    """

    registers: dict[int, int | None]
    stores: list[Stored]


def _extended(value: int, size: int, *, is_signed: bool) -> int:
    """Return the number in the low bytes of another one."""
    value &= (1 << 8 * size) - 1
    return value - (1 << 8 * size) if is_signed and value >> (8 * size - 1) else value


class _Model:
    def __init__(self, before: Mapping[int, int], read: Callable[[int, int], int | None]) -> None:
        self.before = before
        self.read = read
        self.expected = Expected({}, [])

    def value(self, register: int) -> int | None:
        if register in self.expected.registers:
            return self.expected.registers[register]
        return self.before.get(register)

    def set(self, register: int, value: int | None) -> None:
        self.expected.registers[register] = None if value is None else value & _MASK

    def apply(self, step: Step) -> None:
        op, register, source, offset, size, _, scale, is_signed = step
        first = 0 if source == NOTHING else self.value(source)
        if op is Op.MOVE:
            self.set(register, None if first is None else first + offset)
        elif op is Op.NUMBER:
            self.set(register, offset)
        elif op is Op.LOAD:
            self.set(register, None if first is None else self.read(first + offset & _MASK, _WORD))
        elif op is Op.STORE:
            to = self.value(register)
            assert to is not None, "a store to an address that this instruction has just made unknown"
            value = self.value(source) if source != NOTHING and size == _WORD else None
            self.expected.stores.append(Stored(to + offset & _MASK, size, value))
        elif op is Op.ADD:
            second = self.value(register)
            known = first is not None and second is not None
            number = _extended(first or 0, size, is_signed=is_signed) * scale
            self.set(register, (second or 0) + number if known else None)
        elif op is Op.EXTEND:
            self.set(register, None if first is None else _extended(first, size, is_signed=is_signed))
        elif op is not Op.COMPARE:
            self.set(register, None)


def expect(effect: Effect, before: Mapping[int, int], read: Callable[[int, int], int | None]) -> Expected:
    """Return what an effect says; `before` has all registers, `read(vaddr, size)` returns a number in memory."""
    model = _Model(before, read)
    for step in effect.steps:
        model.apply(step)
    return model.expected
