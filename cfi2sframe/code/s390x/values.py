# SPDX-License-Identifier: Apache-2.0
"""What s390x instructions that copy, add, load and store do to registers and to the frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code.effects import BETWEEN_STEPS, NO_EFFECT, NOTHING, Effect, Op, Step
from cfi2sframe.code.s390x.steps import FLAGS, WORD, address_of, default, forget, load, store, sum_of
from cfi2sframe.code.s390x.text import GENERAL_COUNT, REGISTER_COUNTS, S390xText, float_register, partner

if TYPE_CHECKING:
    from collections.abc import Callable


# Copies and sums


def copies(size: int = WORD, *, is_signed: bool = False, sets_flags: bool = False) -> Callable[[S390xText], Effect]:
    """Return the handler of copies of a register, or of its low bytes, extended to all bytes."""

    def handle(text: S390xText) -> Effect:
        target, source = text.register(0), text.register(1)
        steps = (Step(Op.MOVE, target, source, size=size, is_signed=is_signed),)
        return Effect((*steps, FLAGS) if sets_flags else steps)

    return handle


def constants(shift: int, *, is_signed: bool = False) -> Callable[[S390xText], Effect | None]:
    """Return the handler of loads of a number, of which all other bits are 0."""

    def handle(text: S390xText) -> Effect | None:
        number = text.number(1)
        if number is None or (number < 0 and not is_signed):
            return default(text)
        return Effect((Step(Op.CONSTANT, text.register(0), offset=number << shift),))

    return handle


def larl(text: S390xText) -> Effect | None:
    """Return the effect of `larl`, the load of an address in the text."""
    vaddr = text.target(1)
    return default(text) if vaddr is None else Effect((Step(Op.CONSTANT, text.register(0), offset=vaddr),))


def la(text: S390xText) -> Effect | None:
    """Return the effect of `la` and `lay`, loads of the address of an operand."""
    memory = text.memory(1)
    return default(text) if memory is None else Effect(address_of(text.register(0), memory))


def adds_number(sign: int = 1) -> Callable[[S390xText], Effect | None]:
    """Return the handler of sums with a number, of two or three operands."""

    def handle(text: S390xText) -> Effect | None:
        number = text.number(len(text.operands) - 1)
        source = text.register(len(text.operands) - 2)
        if number is None:
            return default(text)
        return Effect((Step(Op.MOVE, text.register(0), source, sign * number), FLAGS))

    return handle


def adds_register(text: S390xText) -> Effect:
    """Return the effect of a sum of registers, of two or three operands."""
    target = text.register(0)
    first = target if len(text.operands) == 2 else text.register(1)
    return Effect((*sum_of(target, first, text.register(len(text.operands) - 1)), FLAGS))


def adds_memory(size: int) -> Callable[[S390xText], Effect]:
    """Return the handler of sums with signed memory: those with a word of a table of jumps lead to its target."""

    def handle(text: S390xText) -> Effect:
        target, memory = text.register(0), text.memory(1)
        if memory is None or memory.index == NOTHING:
            return Effect((Step(Op.FORGET, target), FLAGS))
        return Effect((load(BETWEEN_STEPS, memory, size, is_signed=True), Step(Op.ADD, target, BETWEEN_STEPS), FLAGS))

    return handle


def short_limit(limit: int) -> Callable[[S390xText], Effect]:
    """Return the handler of copies of an unsigned number of fewer bits from memory or from a register."""
    return lambda text: Effect((Step(Op.LIMIT, text.register(0), offset=limit),))


def shifts_left(text: S390xText) -> Effect:
    """Return the effect of `sllg`."""
    memory = text.memory(2)
    target, source = text.register(0), text.register(1)
    if memory is None or memory.base != NOTHING or not 0 <= memory.offset < 64:
        return Effect((Step(Op.FORGET, target),))
    copy = () if target == source else (Step(Op.MOVE, target, source),)
    return Effect((*copy, Step(Op.SCALE, target, scale=1 << memory.offset)))


def rotates_and_selects(text: S390xText) -> Effect:
    """Return the effect of `risbg`: the low bits of a register, moved to the left, with zeros around them."""
    flags = () if text.name == "risbgn" else (FLAGS,)
    target, source, first, last = text.register(0), text.register(1), text.number(2), text.number(3)
    shift = (text.number(4) or 0) & 63
    # The bits from `first` to `last`; the highest has the number 0. 128: the others become 0.
    if first is None or last is None or not last & 128 or last & 63 != 63 - shift:
        return Effect((Step(Op.FORGET, target), *flags))
    width = 64 - shift - (first & 63)
    if width <= 0:
        return Effect((Step(Op.FORGET, target), *flags))
    if width % 8 or width == 64:
        steps = [Step(Op.LIMIT, target, offset=(1 << width) - 1)]
    else:
        steps = [Step(Op.MOVE, target, source, size=width // 8)]
    if shift:
        steps.append(Step(Op.SCALE, target, scale=1 << shift))
    return Effect((*steps, *flags))


# Loads and stores


def loads(size: int = WORD, *, is_signed: bool = False, sets_flags: bool = False) -> Callable[[S390xText], Effect]:
    """Return the handler of loads of all bytes of a register."""

    def handle(text: S390xText) -> Effect:
        step = load(text.register(0), text.memory(1), size, is_signed=is_signed)
        return Effect((step, FLAGS) if sets_flags else (step,))

    return handle


def loads_relative(size: int, *, is_signed: bool = False) -> Callable[[S390xText], Effect | None]:
    """Return the handler of loads of all bytes of a register from an address in the text."""

    def handle(text: S390xText) -> Effect | None:
        vaddr, target = text.target(1), text.register(0)
        if vaddr is None:
            return default(text)
        return Effect((Step(Op.LOAD, target, NOTHING, vaddr, size, is_signed=is_signed),))

    return handle


def _range(text: S390xText) -> list[int]:
    """Return the registers from the first operand to the second, of which the last one is followed by r0."""
    first, last = text.register(0), text.register(1)
    count = (last - first) % GENERAL_COUNT + 1
    return [(first + place) % GENERAL_COUNT for place in range(count)]


def stores_many(text: S390xText) -> Effect:
    """Return the effect of `stmg`."""
    memory = text.memory(2)
    if memory is None or not memory.is_plain:
        return NO_EFFECT
    at = enumerate(_range(text))
    return Effect(tuple([Step(Op.STORE, memory.base, source, memory.offset + WORD * place) for place, source in at]))


def loads_many(text: S390xText) -> Effect:
    """Return the effect of `lmg`."""
    memory, targets = text.memory(2), _range(text)
    if memory is None:
        return Effect(forget(targets))
    at = [(target, memory.offset + WORD * place) for place, target in enumerate(targets)]
    # The address is that of before the first load.
    at.sort(key=lambda each: each[0] == memory.base)
    return Effect(tuple([Step(Op.LOAD, target, memory.base, offset) for target, offset in at]))


def loads_many_halves(text: S390xText) -> Effect:
    """Return the effect of loads of one half of many registers."""
    return Effect(forget(_range(text)))


def stores_range(size: int) -> Callable[[S390xText], Effect]:
    """Return the handler of stores of `size` bytes of many registers, of any kind, which are not followed."""

    def handle(text: S390xText) -> Effect:
        count = (text.register_number(1) - text.register_number(0)) % REGISTER_COUNTS[text.operands[0][1]] + 1
        return Effect(store(text.memory(2), size * count))

    return handle


def loads_vectors(text: S390xText) -> Effect:
    """Return the effect of `vlm`."""
    first, last = text.register_number(0), text.register_number(1)
    changed = [float_register(number) for number in range(first, min(last, 15) + 1)]
    return Effect(forget(changed))


def stores_zoned(text: S390xText) -> Effect:
    """Return the effect of stores of decimal digits, whose number is in the text."""
    memory = text.memory(1)
    return Effect(store(memory, (memory and memory.length) or 1))


def stores(size: int, place: int = 1, *, follows_source: bool = False) -> Callable[[S390xText], Effect]:
    """Return the handler of stores to an operand in memory."""

    def handle(text: S390xText) -> Effect:
        return Effect(store(text.memory(place), size, text.register(0) if follows_source else NOTHING))

    return handle


def updates(size: int) -> Callable[[S390xText], Effect]:
    """Return the handler of instructions that change their first operand, in memory, and the condition code."""
    return lambda text: Effect((*store(text.memory(0), size), FLAGS))


def moves(text: S390xText) -> Effect:
    """Return the effect of an instruction that changes its first operand, whose length is in the text."""
    memory = text.memory(0)
    return Effect(store(memory, (memory and memory.length) or 1))


def moves_and_flags(text: S390xText) -> Effect:
    """Return the effect of such an instruction that changes the condition code, too."""
    return Effect((*moves(text).steps, FLAGS))


def moves_and_changes(register: int) -> Callable[[S390xText], Effect]:
    """Return the handler of such an instruction that changes the condition code and a register, too."""
    return lambda text: Effect((*moves_and_flags(text).steps, Step(Op.FORGET, register)))


def swaps(size: int, *, is_pair: bool = False) -> Callable[[S390xText], Effect]:
    """Return the handler of `cs` and of its kin, which may change a register, or a pair, and storage."""

    def handle(text: S390xText) -> Effect:
        target = text.register(0)
        changed = (target, partner(target)) if is_pair else (target,)
        return Effect((*store(text.memory(2), size), *forget(changed), FLAGS))

    return handle
