# SPDX-License-Identifier: Apache-2.0
"""What is known at one instruction: the values of registers and of stack slots, as sums with a base.

A value is a base and an offset in bytes. Slots are places in memory at such a value. What is not known is absent. The
state before an instruction is the join of those with which control reaches it: only what all of them say alike.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cfi2sframe.code.effects import NOTHING

#: Bases of values: the CFA; what FP and the RA were at the function's entry; no base (a constant); what is in memory
#: at an absolute address; an unknown number that is not above the offset; no caller (the process's entry point).
CFA: Final = 0
CALLER_FP: Final = 1
RETURN_ADDRESS: Final = 2
CONSTANT: Final = 3
LOADED: Final = 4
LIMITED: Final = 5
NO_CALLER: Final = 6
#: Numbers like `LIMITED` ones times a power of 2, whose logarithm is added to the base: at most 3.
SCALED: Final = 8
#: From here on, bases are what SP was set to by an instruction: this plus its address.
SET_AT: Final = 16

#: Slots and targets of a state of ordinary code: more are counted.
_USUAL_COUNT: Final = 16
#: Addresses and tables that a register may have at a jump.
MAX_TARGETS: Final = 32
#: The offset of a number that no limit is known for.
NO_LIMIT: Final = 1 << 64


class Value(NamedTuple):
    """The base's value plus an offset, of which a CFA's may be negative."""

    base: int
    offset: int


class TableWord(NamedTuple):
    """A word of a table of jumps: which one is not known, but that its number is at most `limit` (None: any).

    Words have `size` bytes, and are `scale` bytes apart from `vaddr` on; the value is the word times `factor` plus
    `added`. Register `origin` still has the address that the table was found by, `origin_vaddr` (`NOTHING`: none has).
    """

    vaddr: int
    scale: int
    size: int
    is_signed: bool
    limit: int | None
    added: int = 0
    factor: int = 1
    origin: int = NOTHING
    origin_vaddr: int = 0


#: Where an indirect jump may lead: addresses, and words of tables.
Targets = frozenset[int | TableWord]


class State:
    """The state before an instruction.

    `targets` has the registers with one of several addresses, or with words of tables: what jumps may need.
    """

    __slots__ = ("registers", "slots", "targets")

    def __init__(
        self, registers: dict[int, Value], slots: dict[Value, Value], targets: dict[int, Targets] | None = None
    ) -> None:
        self.registers = registers
        self.slots = slots
        self.targets = targets if targets is not None else {}

    def copy(self) -> State:
        """Return a state that may be changed by itself."""
        return State(self.registers.copy(), self.slots.copy(), self.targets.copy())

    @property
    def excess(self) -> int:
        """How many slots and targets the state has beyond the few that there are mostly; 0 where there are no more."""
        targets = sum(map(len, self.targets.values())) if self.targets else 0
        return max(0, len(self.slots) + targets - _USUAL_COUNT)

    def targets_of(self, register: int) -> Targets | None:
        """Return where a jump to a register's value may lead; None where that is not known."""
        value = self.registers.get(register)
        if value is not None and value.base == CONSTANT:
            return frozenset((value.offset,))
        return self.targets.get(register)

    def join(self, other: State, addresses: range) -> bool:
        """Keep only what another state says, too; return whether that was less than before.

        Of constants that differ, those in the range of `addresses` are kept as targets.
        """
        changed = bool(self.targets) and self._join_targets(other)
        mine, theirs = self.registers, other.registers
        if mine != theirs:
            for register in [r for r, value in mine.items() if theirs.get(r) != value]:
                old, new = mine[register], theirs.get(register)
                if new is not None and new.base == old.base and is_limited(old):
                    if new.offset < old.offset:
                        continue
                    mine[register] = new
                else:
                    del mine[register]
                    if old.base == CONSTANT and old.offset in addresses:
                        both = other.targets_of(register)
                        if both is not None and len(both) < MAX_TARGETS:
                            self.targets[register] = both | {old.offset}
                changed = True
        if self.slots != other.slots:
            for place in [p for p, value in self.slots.items() if other.slots.get(p) != value]:
                changed = True
                del self.slots[place]
        return changed

    def _join_targets(self, other: State) -> bool:
        """Let registers have the targets of both states, where both have some."""
        joined: dict[int, Targets] = {}
        for register, mine in self.targets.items():
            theirs = other.targets_of(register)
            if theirs is not None and len(both := mine | theirs) <= MAX_TARGETS:
                joined[register] = both
        changed = joined != self.targets
        self.targets = joined
        return changed


def is_limited(value: Value) -> bool:
    """Whether a value is an index of which a limit may be known."""
    return value.base == LIMITED or SCALED <= value.base < SET_AT


def signed(number: int) -> int:
    """Return a number of 64 bits as one with a sign."""
    return number - (1 << 64) if number >> 63 else number
