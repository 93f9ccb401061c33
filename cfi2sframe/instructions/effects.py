# SPDX-License-Identifier: Apache-2.0
"""The effect of an instruction on registers, stack and flow of control, in the same terms for all ABIs.

Registers have their DWARF numbers. An effect names every general register that an instruction changes, but not flags,
vectors, or memory to which no register of the frame points.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.range_map import ADDRESS_MASK

#: In place of a register: none.
NOTHING: Final = -1
#: Registers of no ABI: the target of an indirect jump; a value that a step leaves for the next one of its instruction.
JUMP: Final = 1000
BETWEEN: Final = 1001
#: DWARF's pseudo-register of AArch64 (AADWARF64, 4.1): 0 where the RA is an address, 1 or 2 where key A or B signed it.
RA_SIGN_STATE: Final = 34


class Op(IntEnum):
    """The operations on values; their operands are fields of `Step`."""

    FORGET = 0
    """register = unknown"""
    MOVE = 1
    """register = source + offset"""
    NUMBER = 2
    """register = offset, a number: an address where `size` is 8, and where it is 4 in files at fixed addresses"""
    LOAD = 3
    """register = the 8 bytes at source + offset; at offset where source is `NOTHING`"""
    STORE = 4
    """the `size` bytes at register + offset = source; an unknown value where source is `NOTHING`"""
    MOVE_FRAME = 5
    """register = another address in the frame or below it, if it was one: an alignment, an allocation"""
    ADD = 6
    """register = register + source * scale: of the source, the low `size` bytes, signed where `is_signed`"""
    INDEX = 7
    """register = a word of the table at source or index, plus offset: `size` bytes, signed where `is_signed`"""
    SIGN_EXTEND = 8
    """register = its low 4 bytes, signed"""
    COMPARE = 9
    """the next instruction can branch on whether register and source are equal"""


class Step(NamedTuple):
    """One operation; fields that are not its operands keep their defaults."""

    op: Op
    register: int
    source: int = NOTHING
    offset: int = 0
    size: int = 8
    index: int = NOTHING  # type: ignore[assignment]  # hides tuple.index
    scale: int = 1
    is_signed: bool = False


class Flow(IntEnum):
    """The flow of control after an instruction; `Effect.target` is the target of a direct jump or call."""

    NEXT = 0
    JUMP = 1
    BRANCH = 2
    """To the target or to the next instruction."""
    CALL = 3
    """To the target, or to an unknown address if that is None; perhaps back to the next instruction."""
    JUMP_INDIRECT = 4
    """To the address in `JUMP`."""
    BRANCH_INDIRECT = 5
    """To the address in `JUMP` or to the next instruction."""
    RETURN = 6
    """To the address in `JUMP`, by an instruction that only returns have."""
    STOP = 7
    """Nowhere: a trap."""
    SYSTEM_CALL = 8
    """To the next instruction, unless the number in `JUMP` is that of a system call that does not return."""
    EXECUTE = 9
    """To the next instruction, after the one at the target has been executed (s390x)."""


class Effect(NamedTuple):
    """The steps of an instruction, in order, and the flow of control after them.

    `equal` of a branch: True if it is taken when the compared values are equal, False if when they differ, None if
    something else decides. `is_padding`: the instruction does nothing, and may fill the space between functions.
    """

    steps: tuple[Step, ...] = ()
    flow: Flow = Flow.NEXT
    target: int | None = None
    equal: bool | None = None
    is_padding: bool = False

    @property
    def changed(self) -> int:
        """A bit for each general register that the instruction changes."""
        return bits(step.register for step in self.steps if step.op not in (Op.STORE, Op.COMPARE))


#: The effect of instructions on vectors and flags: of most.
NO_EFFECT: Final = Effect()
PADDING: Final = Effect(is_padding=True)
TRAP: Final = Effect(flow=Flow.STOP, is_padding=True)


class Abi(NamedTuple):
    """The instructions of an ABI, for the machine; `arch` has its registers and offsets.

    Calls change `clobbered` registers (bits), and the `callee_area` bytes from SP on. Signal handlers spare the
    `red_zone` bytes below SP. `last_calls` are the numbers of Linux's system calls that do not return, or may return on
    another stack.

    `effect_of(address, size, mnemonic, operands)` returns the effect of an instruction from capstone's text; None if it
    may do anything to SP or to the flow. `depends_on_address(mnemonic, operands)` is true if the same text may have
    another effect at another address. `executed(operands, mnemonic, operands)` returns the effect of an instruction
    that another one executes.

    `references(data, address, is_fixed)` yields the addresses of what may be instructions in the bytes of code at an
    address, and the addresses that these call, jump to or load. Where instructions have several sizes, some are in the
    middle of an instruction, or data. `is_fixed`: numbers in instructions may be addresses.

    `stub_literal_size` is the size of a number after each direct jump in PLT stubs. `disassembler` has capstone's names
    for the machine, which version 6 has changed, and for its mode.
    """

    arch: Arch
    clobbered: int
    callee_area: int
    red_zone: int
    last_calls: frozenset[int]
    effect_of: Callable[[int, int, str, str], Effect | None]
    references: Callable[[bytes, int, bool], Iterator[tuple[int, int]]]
    disassembler: tuple[str, str, str]
    stub_literal_size: int = 0
    depends_on_address: Callable[[str, str], bool] = lambda _mnemonic, _operands: False
    executed: Callable[[str, str, str], Effect | None] = lambda _executing, _mnemonic, _operands: None


class Storage(NamedTuple):
    """An operand of `size` bytes in memory, at base + index * scale + offset; `NOTHING` is no register.

    `is_known`: the address is a sum of whole registers and a number.
    """

    base: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    offset: int
    size: int
    scale: int = 1
    is_known: bool = True

    def stored(self, size: int, source: int = NOTHING) -> tuple[Step, ...]:
        """Return the store to the operand; none where the address is not one register and a number."""
        is_plain = self.is_known and self.base != NOTHING and self.index == NOTHING
        return (Step(Op.STORE, self.base, source, self.offset, size),) if is_plain else ()

    def loaded(self, register: int, size: int, *, is_signed: bool = False) -> Step:
        """Return the load of a register from the operand, which may be a word of a table."""
        if self.is_known and (self.index != NOTHING or (self.base != NOTHING and size != 8)):
            return Step(Op.INDEX, register, self.base, self.offset, size, self.index, is_signed=is_signed)
        is_word = self.is_known and size == 8
        return Step(Op.LOAD, register, self.base, self.offset) if is_word else Step(Op.FORGET, register)


def bits(registers: Iterable[int]) -> int:
    """Return a number with a bit for each general or floating-point register."""
    return sum(1 << register for register in set(registers) if 0 <= register < RA_SIGN_STATE)


def forget(*registers: int) -> tuple[Step, ...]:
    """Return the steps that forget registers; those that are `NOTHING` are left out."""
    return tuple([Step(Op.FORGET, register) for register in dict.fromkeys(registers) if register != NOTHING])


def words(text: str) -> frozenset[str]:
    """Return the words of a text, such as mnemonics."""
    return frozenset(text.split())


def sizes(names: dict[int, str]) -> dict[str, int]:
    """Return sizes by name, from names by size: a text has all names of one size."""
    return {name: size for size, text in names.items() for name in text.split()}


def number(text: str) -> int | None:
    """Return the integer that an operand is, where it has 64 bits a signed one; None for any other text."""
    digits = text[1:] if text[:1] == "#" else text
    if digits[:1] not in _DIGITS:
        return None
    try:
        value = int(digits, 0)
    except ValueError:
        # A number with a fraction.
        return None
    return value - (1 << 64) if value >> 63 == 1 else value


def address_in(text: str) -> int | None:
    """Return the address that an operand is; None for any other text."""
    value = number(text)
    return None if value is None else value & ADDRESS_MASK


_DIGITS: Final = frozenset("-0123456789")
