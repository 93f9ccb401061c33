# SPDX-License-Identifier: Apache-2.0
"""The steps that the effects of s390x instructions are made of, and effects that need no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import NOTHING, Effect, Op, Step
from cfi2sframe.code.s390x.text import S390xMemory, S390xText, partner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORD: Final = 8
SP: Final = 15
FP: Final = 11
RA: Final = 14
#: The condition code tells of something else than the last comparison.
FLAGS: Final = Step(Op.COMPARE, NOTHING)


def forget(registers: Iterable[int]) -> tuple[Step, ...]:
    """Return the steps that forget registers; those that are `NOTHING` are left out."""
    return tuple([Step(Op.FORGET, register) for register in sorted(set(registers)) if register != NOTHING])


def store(memory: S390xMemory | None, size: int, source: int = NOTHING) -> tuple[Step, ...]:
    """Return the store to an operand in memory; nothing where its address is no plain sum."""
    if memory is None or not memory.is_plain:
        return ()
    return (Step(Op.STORE, memory.base, source, memory.offset, size),)


def load(target: int, memory: S390xMemory | None, size: int, *, is_signed: bool = False) -> Step:
    """Return the step that loads `size` bytes from an operand in memory."""
    if memory is None:
        return Step(Op.FORGET, target)
    base, index, offset, _ = memory
    if index != NOTHING:
        return Step(Op.LOAD_INDEXED, target, base, offset, size, index, is_signed=is_signed)
    return Step(Op.LOAD, target, base, offset, size, is_signed=is_signed)


def sum_of(target: int, first: int, second: int) -> tuple[Step, ...]:
    """Return the steps to the sum of two registers."""
    if target == second:
        first, second = second, first
    if target == second:
        return (Step(Op.FORGET, target),)
    copy = () if target == first else (Step(Op.MOVE, target, first),)
    return (*copy, Step(Op.ADD, target, second))


def address_of(target: int, memory: S390xMemory) -> tuple[Step, ...]:
    """Return the steps to the address of an operand."""
    base, index, offset, _ = memory
    if base == NOTHING:
        return (Step(Op.CONSTANT, target, offset=offset),)
    if index == NOTHING:
        return (Step(Op.MOVE, target, base, offset),)
    steps = sum_of(target, base, index)
    return steps if not offset or steps[-1].op is Op.FORGET else (*steps, Step(Op.MOVE, target, target, offset))


def first(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes its first operand."""
    return Effect(forget((text.register(0),)))


def first_and_flags(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes its first operand and the condition code."""
    return Effect((*forget((text.register(0),)), FLAGS))


def pair(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes a pair of registers and the condition code."""
    register = text.register(0)
    return Effect((*forget((register, partner(register))), FLAGS))


def named(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes the registers that it names, and the condition code."""
    return Effect((*forget(text.named()), FLAGS))


def named_pairs(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes the pairs that it names, and the condition code."""
    named = text.named()
    return Effect((*forget((*named, *map(partner, named))), FLAGS))


def implicit(*registers: int) -> Callable[[S390xText], Effect]:
    """Return the handler of an instruction that changes these registers, what it names, and the condition code."""
    return lambda text: Effect((*forget((*registers, *text.named())), FLAGS))


def default(text: S390xText) -> Effect | None:
    """Return the effect of an instruction that no table names; None for one that may be a branch."""
    if text.name.startswith(("b", "j")):
        return None
    first, named = text.register(0), text.named()
    if any(operand.startswith(("%f", "%v")) for operand in text.operands):
        # These change their first operand only: of numbers of 128 bits, the pair that begins with it.
        is_pair = ("x" in text.name or text.name.startswith(("my", "may"))) and text.name[0] != "v"
        return Effect((*forget((first, partner(first)) if is_pair and first != NOTHING else (first,)), FLAGS))
    stores = [step for place in range(len(text.operands)) for step in _memory_of_default(text, place)]
    return Effect((*stores, *forget((0, 1, 2, *named, *map(partner, named))), FLAGS))


def _memory_of_default(text: S390xText, place: int) -> tuple[Step, ...]:
    memory = text.memory(place) if "(" in text.operands[place] else None
    return store(memory, (memory and memory.length) or WORD)
