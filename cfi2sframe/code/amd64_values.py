# SPDX-License-Identifier: Apache-2.0
"""What AMD64's instructions do to registers, to memory and to the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code.amd64_text import HALF, IS_VECTOR, R11, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, WORD, named
from cfi2sframe.code.effects import NO_EFFECT, NOTHING, Effect, Op, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.code.amd64_text import Amd64Memory, Amd64Text


def forget(registers: Iterable[int]) -> tuple[Step, ...]:
    """Return the steps that forget registers."""
    return tuple([Step(Op.FORGET, register) for register in sorted(set(registers))])


def stored(memory: Amd64Memory | None, source: int = NOTHING, size: int = 0) -> tuple[Step, ...]:
    """Return the store to an operand in memory; nothing where the address is no plain sum."""
    if memory is None or not memory.is_plain:
        return ()
    return (Step(Op.STORE, memory.base, source, memory.offset, size or memory.size),)


def changes_first(text: Amd64Text) -> Effect:
    """Return the effect of an instruction that changes its first operand, and in no way that is followed."""
    if not text.operands:
        return NO_EFFECT
    register = text.part(0)
    if register is not None:
        return Effect((Step(Op.FORGET, register[0]),))
    return Effect(stored(text.memory(0)))


def mov(text: Amd64Text) -> Effect:
    """Return the effect of MOV."""
    target, part = text.register(0), text.part(0)
    value, source = text.value(1), text.register(1)
    if target is not None:
        if source is not None:
            return Effect((Step(Op.MOVE, target, source),))
        if value is not None:
            return Effect((Step(Op.ABSOLUTE, target, offset=value),))
        return Effect((loaded(target, text.memory(1)),))
    if part is not None:
        if part[1] == 4 and value is not None:
            return Effect((Step(Op.ABSOLUTE, part[0], offset=value & 0xFFFFFFFF),))
        if part[1] == 1 and value is not None and text.operands[0][-1] == "l":
            return Effect((Step(Op.CONSTANT, part[0], offset=value & 0xFF, size=1),))
        return _short_copy(text, part[0])
    memory = text.memory(0)
    if memory is None:
        # A segment, control or debug register.
        return NO_EFFECT
    return Effect(stored(memory, NOTHING if source is None else source))


def _short_copy(text: Amd64Text, target: int) -> Effect:
    """Return the effect of a copy of fewer than 8 bytes."""
    source = text.part(1)
    if source is not None and text.operands[1][-1] != "h":
        return Effect((Step(Op.MOVE, target, source[0], size=source[1]),))
    memory = text.memory(1)
    if memory is not None and text.name.startswith("movzx"):
        if memory.size == 1:
            return _limit_or_table(target, memory, 0xFF)
        return Effect((loaded(target, memory),))
    if memory is not None and memory.size == 4:
        return Effect((loaded(target, memory, is_signed=text.name == "movsxd"),))
    return Effect((Step(Op.FORGET, target),))


def _limit_or_table(target: int, memory: Amd64Memory, limit: int) -> Effect:
    step = loaded(target, memory)
    return Effect((step if step.op is Op.LOAD_INDEXED else Step(Op.LIMIT, target, offset=limit),))


def loaded(target: int, memory: Amd64Memory | None, *, is_signed: bool = False) -> Step:
    """Return the step that loads a register from memory."""
    if memory is None or memory.segment:
        return Step(Op.FORGET, target)
    if memory.index != NOTHING:
        return Step(
            Op.LOAD_INDEXED, target, memory.base, memory.offset, memory.size, memory.index, memory.scale, is_signed
        )
    return Step(Op.LOAD, target, memory.base, memory.offset, memory.size, is_signed=is_signed)


def extend(text: Amd64Text) -> Effect:
    """Return the effect of a copy that extends its source."""
    part, memory = text.part(0), text.memory(1)
    if part is None:
        return changes_first(text)
    if text.name in ("movsxd", "movsx") and memory is not None and part[1] == WORD:
        return Effect((loaded(part[0], memory, is_signed=True),))
    return _short_copy(text, part[0])


def add_or_sub(text: Amd64Text) -> Effect:
    """Return the effect of ADD and SUB."""
    target, value, source = text.register(0), text.value(1), text.register(1)
    if target is None or (value is None and source is None):
        return changes_first(text)
    if value is not None:
        # Numbers of 32 bits are extended with their sign; capstone writes them so.
        return Effect((Step(Op.MOVE, target, target, value if text.name == "add" else -value),))
    if source is None:
        return Effect((Step(Op.FORGET, target),))
    return Effect((Step(Op.ADD, target, source, scale=1 if text.name == "add" else -1),))


def exclusive_or(text: Amd64Text) -> Effect:
    """Return the effect of XOR, with which registers are cleared."""
    part = text.part(0)
    if part is not None and part == text.part(1) and part[1] >= HALF:
        return Effect((Step(Op.CONSTANT, part[0]),))
    return changes_first(text)


def step_by_one(text: Amd64Text) -> Effect:
    """Return the effect of INC and DEC."""
    target = text.register(0)
    if target is None:
        return changes_first(text)
    return Effect((Step(Op.MOVE, target, target, 1 if text.name == "inc" else -1),))


def lea(text: Amd64Text) -> Effect:
    """Return the effect of LEA."""
    target, memory = text.register(0), text.memory(1)
    if target is None or memory is None or memory.base == memory.index == NOTHING:
        if target is not None and memory is not None and not memory.segment:
            return Effect((Step(Op.CONSTANT, target, offset=memory.offset),))
        return changes_first(text)
    # A segment does not change the address that is computed, but 32-bit registers do.
    if memory.segment or memory.base == NOTHING or memory.scale != 1:
        return Effect((Step(Op.FORGET, target),))
    if memory.index == NOTHING:
        return Effect((Step(Op.MOVE, target, memory.base, memory.offset),))
    first, second = memory.base, memory.index
    if second == target:
        first, second = second, first
    if second == target:
        return Effect((Step(Op.FORGET, target),))
    return Effect((Step(Op.MOVE, target, first, memory.offset), Step(Op.ADD, target, second)))


def mask(text: Amd64Text) -> Effect:
    """Return the effect of AND: a number with a limit, but for SP."""
    part, value = text.part(0), text.value(1)
    if part is None or value is None or value < 0 or part[0] == RSP:
        return changes_first(text)
    return Effect((Step(Op.LIMIT, part[0], offset=value),))


def push(text: Amd64Text) -> Effect | None:
    """Return the effect of PUSH; None where it pushes fewer than 8 bytes."""
    part, memory = text.part(0), text.memory(0)
    if (part is not None and part[1] != WORD) or (memory is not None and memory.size != WORD):
        return None
    # Segment registers are pushed as 8 bytes, too.
    source = NOTHING if part is None else part[0]
    return Effect((Step(Op.STORE, RSP, source, -WORD), Step(Op.MOVE, RSP, RSP, -WORD)))


def pop(text: Amd64Text) -> Effect | None:
    """Return the effect of POP; None where it pops fewer than 8 bytes."""
    part, memory = text.part(0), text.memory(0)
    if (part is not None and part[1] != WORD) or (memory is not None and memory.size != WORD):
        return None
    up = Step(Op.MOVE, RSP, RSP, WORD)
    if part is None:
        # An address with SP is computed after the step.
        return Effect((up, *stored(memory)))
    load = Step(Op.LOAD, part[0], RSP)
    return Effect((load,) if part[0] == RSP else (load, up))


def leave(_text: Amd64Text) -> Effect:
    """Return the effect of LEAVE."""
    return Effect((Step(Op.MOVE, RSP, RBP), Step(Op.LOAD, RBP, RSP), Step(Op.MOVE, RSP, RSP, WORD)))


def enter(text: Amd64Text) -> Effect | None:
    """Return the effect of ENTER; None where it copies the callers' frame pointers."""
    size, level = text.value(0), text.value(1)
    if size is None or level != 0:
        return None
    push = (Step(Op.STORE, RSP, RBP, -WORD), Step(Op.MOVE, RSP, RSP, -WORD))
    return Effect((*push, Step(Op.MOVE, RBP, RSP), Step(Op.MOVE, RSP, RSP, -size)))


def compare(text: Amd64Text) -> Effect:
    """Return the effect of CMP."""
    left, right, value = text.part(0), text.part(1), text.value(1)
    if left is None or (right is None and value is None):
        return NO_EFFECT
    if value is not None:
        return Effect((Step(Op.COMPARE, left[0], offset=value, size=left[1]),))
    return Effect((Step(Op.COMPARE, left[0], right[0] if right else NOTHING, size=left[1]),))


def exchange(text: Amd64Text) -> Effect:
    """Return the effect of an instruction that changes both of its operands."""
    steps = forget(named(text.operands))
    return Effect((*steps, *stored(text.memory(0)), *stored(text.memory(1))))


def flags(text: Amd64Text) -> Effect:
    """Return the effect of PUSHFQ and POPFQ."""
    if text.name.startswith("push"):
        return Effect((Step(Op.STORE, RSP, NOTHING, -WORD), Step(Op.MOVE, RSP, RSP, -WORD)))
    return Effect((Step(Op.MOVE, RSP, RSP, WORD),))


def changes_first_and(*registers: int) -> Callable[[Amd64Text], Effect]:
    """Return the handler of an instruction that changes its first operand and these registers."""

    def handle(text: Amd64Text) -> Effect:
        return Effect((*forget(registers), *changes_first(text).steps))

    return handle


def changes_only(*registers: int) -> Callable[[Amd64Text], Effect]:
    """Return the handler of an instruction that changes these registers, and reads its operands."""
    effect = Effect(forget(registers))
    return lambda _text: effect


def product(text: Amd64Text) -> Effect:
    """Return the effect of `imul`, whose form with one operand has its result in rdx and rax."""
    return changes_first(text) if len(text.operands) > 1 else Effect(forget((RAX, RDX)))


def other(text: Amd64Text) -> Effect:
    """Return the effect of an instruction that no table names."""
    registers = named(text.operands)
    if "pcmp" in text.name and "str" in text.name:
        registers.append(RCX)
    elif not any(map(IS_VECTOR.search, text.operands)):
        registers += (RAX, RDX, RCX, RBX, RSI, RDI, R11)
    return Effect((*forget(registers), *(stored(text.memory(0)) if text.operands else ())))
