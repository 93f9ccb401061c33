# SPDX-License-Identifier: Apache-2.0
"""The operands of an s390x instruction, from capstone's text."""

import re
from typing import Final

from cfi2sframe.abi import S390X
from cfi2sframe.instructions.effects import NOTHING, Step, Storage, number

F0: Final = 16
FLOATS: Final = tuple(range(F0, F0 + 16))
#: General registers, and floating point registers in the order of DWARF's numbers, which are the first halves of the
#: vector registers 0 to 15.
_REGISTERS: Final = {
    **{f"%r{n}": n for n in range(16)},
    **{f"%{kind}{name[1:]}": number for number, name in enumerate(S390X.registers) if number >= F0 for kind in "fv"},
}
_OPERAND: Final = re.compile(r"[^,() ]+(?:\([^)]*\))?")


class S390xText:
    """An instruction's text: its name and its operands, of which those past the `last` one are empty."""

    def __init__(self, vaddr: int, size: int, name: str, operands: str) -> None:
        self.vaddr, self.end, self.name = vaddr, vaddr + size, name
        texts = _OPERAND.findall(operands)
        self.last = len(texts) - 1
        self.operands: list[str] = [*texts, "", "", "", ""]

    def register(self, place: int) -> int:
        """Return an operand's general or floating point register; `NOTHING` for any other operand."""
        return _REGISTERS.get(self.operands[place], NOTHING)

    def memory(self, place: int) -> Storage:
        """Return an operand in memory, with the number of bytes in the text; a lone number is an address."""
        digits, _, inside = self.operands[place].partition("(")
        offset = number(digits)
        if offset is None:
            return Storage(NOTHING, NOTHING, 0, 0, is_known=False)
        length, registers = 1, []
        parts = inside.rstrip(")").replace(" ", "").split(",") if inside else []
        # A last 0 is no base register, as capstone 6 writes it.
        for part in parts[:-1] if len(parts) > 1 and parts[-1] == "0" else parts:
            if part[:1].isdigit():
                length = int(part, 0)
            else:
                # A vector of indices makes the address no plain one.
                registers.append(_REGISTERS.get(part, F0))
        *index, base = registers or [NOTHING]
        return Storage(base, index[0] if index else NOTHING, offset, length)

    def stored(self, size: int, source: int = NOTHING) -> tuple[Step, ...]:
        """Return the store to the operand in memory, where its address is plain."""
        place = next((n for n, text in enumerate(self.operands) if "(" in text), 0)
        return self.memory(place).stored(size, source)

    def named(self) -> list[int]:
        """Return the registers that are operands, without those of addresses."""
        return [_REGISTERS[text] for text in self.operands if text in _REGISTERS]

    def many(self) -> list[int]:
        """Return the registers from the first operand to the second; r15 is followed by r0."""
        first, last = self.register(0), self.register(1)
        return [(first + place) % 16 for place in range((last - first) % 16 + 1)]
