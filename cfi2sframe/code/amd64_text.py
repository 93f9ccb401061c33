# SPDX-License-Identifier: Apache-2.0
"""The text of an AMD64 instruction, as capstone writes it, taken apart: registers, numbers, memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

WORD: Final = 8
HALF: Final = 4
RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R11 = 0, 1, 2, 3, 4, 5, 6, 7, 11


def _register_names() -> dict[str, tuple[int, int]]:
    """Return the number and the size in bytes of each general register's names."""
    found: dict[str, tuple[int, int]] = {}
    for number, letter in ((RAX, "a"), (RBX, "b"), (RCX, "c"), (RDX, "d")):
        names = {f"r{letter}x": 8, f"e{letter}x": 4, f"{letter}x": 2, f"{letter}l": 1, f"{letter}h": 1}
        found |= {name: (number, size) for name, size in names.items()}
    for number, stem in ((RSI, "si"), (RDI, "di"), (RBP, "bp"), (RSP, "sp")):
        found |= {f"r{stem}": (number, 8), f"e{stem}": (number, 4), stem: (number, 2), f"{stem}l": (number, 1)}
    for number in range(8, 16):
        for suffix, size in (("", 8), ("d", 4), ("w", 2), ("b", 1)):
            found[f"r{number}{suffix}"] = (number, size)
    return found


_REGISTERS: Final = _register_names()
_SIZES: Final = {
    "byte": 1, "word": 2, "dword": 4, "qword": 8, "xword": 10, "tbyte": 10, "fword": 6,
    "xmmword": 16, "ymmword": 32, "zmmword": 64,
}  # fmt: skip
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:(\w\w):)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?) ?(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
IS_VECTOR: Final = re.compile(r"\b(?:[xyz]?mm\d|k\d|st\b|st\()")


class Amd64Memory(NamedTuple):
    """A memory operand: registers or `NOTHING`, a displacement, the bytes accessed; `segment` is one that counts."""

    base: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    scale: int
    offset: int
    size: int
    segment: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the address is a sum of one register and a number."""
        return self.base != NOTHING and self.index == NOTHING and not self.segment


class Amd64Text(NamedTuple):
    """An instruction as its handler sees it; `end` is the address of the next one."""

    name: str
    operands: tuple[str, ...]
    end: int
    size: int

    def register(self, number: int) -> int | None:
        """Return an operand's register of 64 bits; None when it is something else."""
        found = _REGISTERS.get(self.operands[number])
        return found[0] if found is not None and found[1] == WORD else None

    def part(self, number: int) -> tuple[int, int] | None:
        """Return an operand's general register and the bytes of it that are meant; None when it is something else."""
        return _REGISTERS.get(self.operands[number])

    def value(self, number: int) -> int | None:
        """Return an operand that is a number."""
        text = self.operands[number]
        return int(text, 0) if NUMBER.fullmatch(text) else None

    def memory(self, number: int) -> Amd64Memory | None:
        """Return an operand in memory."""
        return _memory(self.operands[number], self.end)


def _memory(text: str, end: int) -> Amd64Memory | None:
    match = _MEMORY.search(text)
    if match is None:
        return None
    word, segment, inside = match.groups()
    base = index = NOTHING
    scale, offset = 1, 0
    is_odd = segment in ("fs", "gs")
    for sign, scaled, factor, number, name in _TERM.findall(inside):
        if number:
            offset += -int(number, 0) if sign == "-" else int(number, 0)
        elif name == "rip":
            offset += end
        elif scaled:
            index, scale = _REGISTERS.get(scaled, (NOTHING, 0))[0], int(factor)
            is_odd |= index == NOTHING
        else:
            register, size = _REGISTERS.get(name, (NOTHING, 0))
            is_odd |= size != WORD
            if base == NOTHING:
                base = register
            else:
                index, scale = register, 1
    # An index register without a name of its own ("riz") leaves the address as it is.
    return Amd64Memory(base, index, scale, offset, _SIZES.get(word or "", WORD), is_odd)


def named(operands: Iterable[str]) -> list[int]:
    """Return the general registers among operands."""
    return [_REGISTERS[text][0] for text in operands if text in _REGISTERS]
