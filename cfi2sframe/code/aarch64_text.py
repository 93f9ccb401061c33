# SPDX-License-Identifier: Apache-2.0
"""The text of an AArch64 instruction, as capstone 4 to 6 write it, taken apart: registers, numbers, memory.

Capstone 4 and 5 write `#` before numbers and targets, capstone 6 before some of them; it has spaces within braces.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cfi2sframe.code.effects import NOTHING

SP: Final = 31
WORD_SIZE: Final = 8
_ADDRESS_BITS: Final = 64
#: General registers: DWARF's number, or `NOTHING` for the zero register, and the bytes that the name means.
REGISTERS: Final[dict[str, tuple[int, int]]] = {
    **{f"x{n}": (n, 8) for n in range(31)},
    **{f"w{n}": (n, 4) for n in range(31)},
    "sp": (SP, 8),
    "wsp": (SP, 4),
    "xzr": (NOTHING, 8),
    "wzr": (NOTHING, 4),
}
#: Bytes of a vector or predicate register. Those of SVE have 16 to 256 bytes, or an eighth of that.
_VECTOR_SIZES: Final = {"b": 1, "h": 2, "s": 4, "d": 8, "q": 16}

_FIRST_DIGITS: Final = frozenset("-0123456789")
_NO_REGISTER: Final = (NOTHING, 0)
_VECTOR: Final = re.compile(r"[bhsdqvzp][0-9]|\{|za")
_LIST: Final = re.compile(r"\{ ?([^}]*?) ?\}(\[)?")
_ARRANGEMENT: Final = re.compile(r"v([0-9]+)\.([0-9]*)([bhsdq])")


class Aarch64Memory(NamedTuple):
    """A memory operand: base + offset, or base + index * scale; the base is `NOTHING` where it is a vector.

    Of the index, the low `index_size` bytes count, signed where `is_signed`. `is_scalable`: the offset is in units of
    the size of the SVE register that is accessed. With `is_pre`, the base is set to the sum first; else
    `step_register` or `step` are added to it afterwards (None: what cannot be told).
    """

    base: int
    offset: int = 0
    index: int = NOTHING  # type: ignore[assignment]  # hides tuple.index
    index_size: int = WORD_SIZE
    is_signed: bool = False
    scale: int = 1
    is_scalable: bool = False
    is_pre: bool = False
    step: int | None = 0
    step_register: int = NOTHING

    @property
    def is_plain(self) -> bool:
        """Whether the address is a general register's value and a number."""
        return self.base != NOTHING and self.index == NOTHING and not self.is_scalable

    @property
    def writes_back(self) -> bool:
        """Whether the base is changed."""
        return self.is_pre or self.step != 0 or self.step_register != NOTHING


class Aarch64Text(NamedTuple):
    """An instruction: its mnemonic, its operands before that in memory, and that one."""

    name: str
    operands: tuple[str, ...]
    memory: Aarch64Memory | None

    def register(self, number: int) -> tuple[int, int] | None:
        """Return an operand's general register and the bytes of it that are meant; None when it is something else."""
        return REGISTERS.get(self.operands[number]) if number < len(self.operands) else None

    def value(self, number: int) -> int | None:
        """Return an operand that is a number, shifted where LSL follows; None when it is something else."""
        if number >= len(self.operands):
            return None
        value = as_number(self.operands[number])
        if value is None or number + 1 >= len(self.operands):
            return value
        kind, _, amount = self.operands[number + 1].partition(" ")
        shift = as_number(amount)
        return value << shift if kind == "lsl" and shift is not None else value

    @property
    def is_vector(self) -> bool:
        """Whether the first operand is a vector or predicate register, or a list of some."""
        return bool(self.operands) and _VECTOR.match(self.operands[0]) is not None


def parse(mnemonic: str, operands: str) -> Aarch64Text:
    """Take an instruction's text apart."""
    start = operands.rfind("[")
    # A lane of a vector has its number in brackets, too.
    if start < 0 or (start and operands[start - 2 : start] != ", "):
        return Aarch64Text(mnemonic, tuple(operands.split(", ")) if operands else (), None)
    end = operands.find("]", start)
    before = tuple(operands[: start - 2].split(", ")) if start else ()
    return Aarch64Text(mnemonic, before, _parse_memory(operands[start + 1 : end].split(", "), operands[end + 1 :]))


def as_number(text: str) -> int | None:
    """Return the integer that a text is; None for any other text."""
    digits = text[1:] if text[:1] == "#" else text
    if digits[:1] not in _FIRST_DIGITS:
        return None
    try:
        return int(digits, 0)
    except ValueError:
        # A number with a fraction.
        return None


def as_signed(value: int) -> int:
    """Return a number of 64 bits, modulo 2**64, that is negative where its highest bit is set."""
    value &= (1 << _ADDRESS_BITS) - 1
    return value - (1 << _ADDRESS_BITS) if value >> (_ADDRESS_BITS - 1) else value


def _parse_memory(inside: list[str], after: str) -> Aarch64Memory:
    """Take apart what stands in the brackets, and what follows them."""
    base = REGISTERS.get(inside[0], _NO_REGISTER)[0]
    is_pre = after[:1] == "!"
    step: int | None = 0
    step_register = NOTHING
    if after[:2] == ", ":
        step = _signed_number(after[2:])
        step_register = REGISTERS.get(after[2:], _NO_REGISTER)[0]
    if len(inside) == 1:
        return Aarch64Memory(base, 0, is_pre=is_pre, step=step, step_register=step_register)
    offset = _signed_number(inside[1])
    if offset is not None:
        is_scalable = inside[-1] == "mul vl"
        return Aarch64Memory(
            base, offset, is_scalable=is_scalable, is_pre=is_pre, step=step, step_register=step_register
        )
    if inside[1] not in REGISTERS:
        return Aarch64Memory(NOTHING)
    index, size = REGISTERS[inside[1]]
    if index == NOTHING:
        return Aarch64Memory(base)
    kind, _, amount = inside[2].partition(" ") if len(inside) > 2 else ("", "", "")
    return Aarch64Memory(base, 0, index, size, is_signed=kind[:1] == "s", scale=1 << (as_number(amount) or 0))


def _signed_number(text: str) -> int | None:
    # Capstone 5 writes negative steps as 64 bits without a sign.
    number = as_number(text)
    return None if number is None else as_signed(number)


def register_size(operand: str) -> int | None:
    """Return the bytes of a general, floating-point or vector register by its name; None for SVE's."""
    if operand in REGISTERS:
        return REGISTERS[operand][1]
    return _VECTOR_SIZES.get(operand[:1])


def list_size(operands: tuple[str, ...]) -> int | None:
    """Return the bytes that a list of vectors, or of one lane of each, takes in memory; None for SVE's."""
    match = _LIST.match(", ".join(operands))
    if match is None:
        return None
    parts = [_ARRANGEMENT.match(part) for part in re.split(r", | - ", match[1])]
    if None in parts:
        return None
    found = [part for part in parts if part is not None]
    count = len(found)
    if " - " in match[1]:
        count = (int(found[-1][1]) - int(found[0][1])) % 32 + 1
    unit = _VECTOR_SIZES[found[0][3]]
    return count * unit * (1 if match[2] else int(found[0][2] or 1))
