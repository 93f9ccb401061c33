# SPDX-License-Identifier: Apache-2.0
"""The text of an s390x instruction, as capstone writes it, in parts: registers, numbers, operands in memory.

Capstone 4 and 5 write the same, as far as 4 knows an instruction. Capstone 6 leaves out the space inside of an address
(`0(%r1,%r2)`), and writes 0 where no base register or no register to branch to is given.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cfi2sframe.code.effects import NOTHING

#: DWARF's number of the floating point register f0, and where the others are from there.
_F0: Final = 16
_F_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
GENERAL_COUNT: Final = 16
#: The registers of each kind, by the letter of their names.
REGISTER_COUNTS: Final = {"r": GENERAL_COUNT, "f": 16, "a": 16, "c": 16, "v": 32}

#: Vector registers 0 to 15 hold a floating point register each, in their first half.
_REGISTERS: Final = {
    **{f"%r{n}": n for n in range(GENERAL_COUNT)},
    **{f"%f{n}": _F0 + place for place, n in enumerate(_F_ORDER)},
    **{f"%v{n}": _F0 + place for place, n in enumerate(_F_ORDER)},
}
#: Stands for a vector register that is no floating point register.
_OTHER: Final = 2000
FLOATS: Final = tuple(range(_F0, _F0 + len(_F_ORDER)))
_OPERAND: Final = re.compile(r"[^,() ]+(?:\([^)]*\))?")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_MASK: Final = (1 << 64) - 1


class S390xMemory(NamedTuple):
    """An operand in memory: registers or `NOTHING`, the displacement, and the length in bytes where the text has one.

    `index` may be a register that holds the length, or a vector register of indices: no part of a plain address.
    """

    base: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    offset: int
    length: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the address is a sum of one register and a number."""
        return self.base != NOTHING and self.index == NOTHING


class S390xText(NamedTuple):
    """An instruction: its name, its operands, its address, and the address of the next one."""

    name: str
    operands: tuple[str, ...]
    address: int
    end: int

    def register(self, place: int) -> int:
        """Return an operand's general or floating point register; `NOTHING` where it is something else."""
        return _REGISTERS.get(self.operands[place], NOTHING) if place < len(self.operands) else NOTHING

    def register_number(self, place: int) -> int:
        """Return the number in the name of an operand's register, of any kind; 0 where it is something else."""
        digits = self.operands[place].lstrip("%racfv") if place < len(self.operands) else ""
        return int(digits) if digits.isdecimal() else 0

    def number(self, place: int) -> int | None:
        """Return an operand that is a number; None where it is something else."""
        text = self.operands[place] if place < len(self.operands) else ""
        try:
            return int(text, 0) if text[:1] != "%" else None
        except ValueError:
            return None

    def target(self, place: int) -> int | None:
        """Return an operand that is an address relative to the instruction's; None where it is something else."""
        number = self.number(place)
        return None if number is None else number & _MASK

    def memory(self, place: int) -> S390xMemory | None:
        """Return an operand in memory; None where it is something else. A number alone is an address."""
        text = self.operands[place] if place < len(self.operands) else ""
        number, _, inside = text.partition("(")
        if not _NUMBER.fullmatch(number):
            return None
        parts = inside.rstrip(")").replace(" ", "").split(",") if inside else []
        length: int | None = None
        registers = []
        for part in parts:
            if part == "0" and part is parts[-1] and len(parts) > 1:
                # No base register.
                continue
            if _NUMBER.fullmatch(part):
                length = int(part, 0)
            else:
                registers.append(_REGISTERS.get(part, _OTHER))
        base = registers[-1] if registers else NOTHING
        index = registers[0] if len(registers) > 1 else NOTHING
        return S390xMemory(base, index, int(number, 0), length)

    def named(self) -> list[int]:
        """Return the registers that are operands by themselves, not parts of an address."""
        return [_REGISTERS[text] for text in self.operands if text in _REGISTERS]


def parse(address: int, size: int, mnemonic: str, operands: str) -> S390xText:
    """Return the parts of an instruction's text."""
    # Most texts that are looked at are those of jumps, each with an address of its own.
    parts = operands.split(", ") if "(" not in operands else _OPERAND.findall(operands)
    return S390xText(mnemonic, tuple(parts) if operands else (), address, address + size)


def float_register(number: int) -> int:
    """Return DWARF's number of the floating point register f0 to f15."""
    return _REGISTERS[f"%f{number}"]


def partner(register: int) -> int:
    """Return the register that follows an even one of a pair, or a floating point register of 128-bit numbers."""
    return register | 1
