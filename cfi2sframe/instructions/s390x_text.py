# SPDX-License-Identifier: Apache-2.0
"""The text of an s390x instruction, as capstone writes it, in parts: registers, numbers, operands in storage."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cfi2sframe.instructions.effects import NOTHING, Op, Step, number

F0: Final = 16
FLOATS: Final = tuple(range(F0, F0 + 16))
#: The numbers of the floating point registers in the order of DWARF's.
_F_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
#: Vector registers 0 to 15 hold a floating point register each, in their first half.
_REGISTERS: Final = {
    **{f"%r{n}": n for n in range(16)},
    **{f"%{kind}{n}": F0 + place for place, n in enumerate(_F_ORDER) for kind in "fv"},
}
_OPERAND: Final = re.compile(r"[^,() ]+(?:\([^)]*\))?")


class Storage(NamedTuple):
    """An operand in memory: registers or `NOTHING`, the displacement, and the length where the text has one."""

    base: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    offset: int
    length: int

    @property
    def is_plain(self) -> bool:
        """Whether the address is a register and a number."""
        return self.base != NOTHING and self.index == NOTHING

    def stored(self, size: int, source: int = NOTHING) -> tuple[Step, ...]:
        """Return the store to the operand; nothing where its address is no plain sum."""
        return (Step(Op.STORE, self.base, source, self.offset, size),) if self.is_plain else ()

    def loaded(self, register: int, size: int, *, is_signed: bool = False) -> Step:
        """Return the load of a register, which may be a word of a table."""
        if self.index != NOTHING or (self.base != NOTHING and size < 8):
            return Step(Op.INDEX, register, self.base, self.offset, size, self.index, is_signed=is_signed)
        return Step(Op.LOAD, register, self.base, self.offset) if size == 8 else Step(Op.FORGET, register)


class S390xText:
    """An instruction's text: its name and its operands."""

    def __init__(self, address: int, size: int, name: str, operands: str) -> None:
        self.address, self.end, self.name = address, address + size, name
        parts = operands.split(", ") if "(" not in operands else _OPERAND.findall(operands)
        self.operands: list[str] = parts if operands else []

    def register(self, place: int) -> int:
        """Return an operand's general or floating point register; `NOTHING` where it is something else."""
        return _REGISTERS.get(self.operands[place], NOTHING) if 0 <= place < len(self.operands) else NOTHING

    def number(self, place: int) -> int | None:
        """Return an operand that is a number; None where it is something else."""
        text = self.operands[place] if 0 <= place < len(self.operands) else ""
        return number(text) if "(" not in text else None

    def target(self, place: int) -> int | None:
        """Return an operand that is an address of code or data."""
        value = self.number(place)
        return None if value is None else value & (1 << 64) - 1

    def memory(self, place: int) -> Storage | None:
        """Return an operand in memory; None where it is something else. A number alone is an address."""
        text = self.operands[place] if 0 <= place < len(self.operands) else ""
        digits, _, inside = text.partition("(")
        offset = number(digits)
        if offset is None:
            return None
        parts = inside.rstrip(")").replace(" ", "").split(",") if inside else []
        length, registers = 1, []
        for part in parts:
            if part == "0" and len(parts) > 1 and part is parts[-1]:
                # No base register, as capstone 6 writes it.
                continue
            if part[:1].isdigit():
                length = int(part, 0)
            else:
                # A vector of indices is no part of a plain address.
                registers.append(_REGISTERS.get(part, F0))
        base = registers[-1] if registers else NOTHING
        return Storage(base, registers[0] if len(registers) > 1 else NOTHING, offset, length)

    def named(self) -> list[int]:
        """Return the registers that are operands by themselves."""
        return [_REGISTERS[text] for text in self.operands if text in _REGISTERS]

    def many(self) -> list[int]:
        """Return the registers from the first operand to the second, of which the last one is followed by the first."""
        first, last = self.register(0), self.register(1)
        return [(first + place) % 16 for place in range((last - first) % 16 + 1)]
