# SPDX-License-Identifier: Apache-2.0
"""What AArch64's loads and stores do, and what instructions of unknown name may do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cfi2sframe.code.aarch64_registers import FLAGS, changes_first, forget
from cfi2sframe.code.aarch64_text import REGISTERS, WORD_SIZE, list_size, register_size
from cfi2sframe.code.effects import BETWEEN_STEPS, NO_EFFECT, NOTHING, Effect, Op, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.code.aarch64_text import Aarch64Memory, Aarch64Text

    Handler = Callable[[Aarch64Text], Effect | None]

#: The largest single access but for SVE's: LD64B, ST4 of 16-byte vectors.
_MAX_ACCESS_SIZE: Final = 64
#: Bytes of an SVE register; a predicate register has an eighth of that. A list has four at most.
_MIN_SVE_SIZE: Final = 16
_MAX_SVE_SIZE: Final = 256
_MAX_LIST: Final = 4
#: The largest block that DC ZVA clears: the one that its address is in.
_MAX_ZVA_SIZE: Final = 2048
#: Atomic operations on floating-point numbers, with a result.
_VECTOR_ATOMIC: Final = re.compile(r"ldb?f(?:add|max|min)")


def _access(memory: Aarch64Memory, steps: Iterable[Step]) -> Effect:
    """Return the effect of steps at a memory operand, and of what the operand does to its base."""
    base = memory.base
    if base == NOTHING:
        return Effect(tuple(steps))
    if memory.is_pre:
        return Effect((Step(Op.MOVE, base, base, memory.offset), *steps))
    if memory.step_register != NOTHING:
        return Effect((*steps, Step(Op.ADD, base, memory.step_register)))
    if memory.step is None:
        return Effect((*steps, *forget(base)))
    return Effect((*steps, Step(Op.MOVE, base, base, memory.step)) if memory.step else tuple(steps))


def _store_steps(memory: Aarch64Memory, parts: Iterable[tuple[int, int]]) -> list[Step]:
    """Return the stores of registers of some sizes, one after the other, where the address is plain."""
    steps: list[Step] = []
    if not memory.is_plain:
        return steps
    offset = 0 if memory.is_pre else memory.offset
    for source, size in parts:
        steps.append(Step(Op.STORE, memory.base, source if size == WORD_SIZE else NOTHING, offset, size))
        offset += size
    return steps


def _scalable_store(memory: Aarch64Memory, *, is_predicate: bool = False, count: int = 1) -> Effect:
    """Return the effect of a store of SVE registers, whose size is not known: all bytes that it may reach."""
    if memory.base == NOTHING or memory.index != NOTHING:
        return NO_EFFECT
    least, most = (_MIN_SVE_SIZE // 8, _MAX_SVE_SIZE // 8) if is_predicate else (_MIN_SVE_SIZE, _MAX_SVE_SIZE)
    places = (memory.offset * least, memory.offset * most) if memory.is_scalable else (memory.offset,)
    size = max(places) + count * most - min(places)
    return Effect((Step(Op.STORE, memory.base, NOTHING, min(places), size),))


def store(size: int | None = None, *, has_status: bool = False) -> Handler:
    """Return the handler of stores of registers; of a size that is not that of the registers.

    `has_status`: the first operand tells whether the second was stored at all.
    """

    def handle(text: Aarch64Text) -> Effect | None:
        memory = text.memory
        sources = text.operands[1:] if has_status else text.operands
        if memory is None or not sources:
            return other(text)
        parts = []
        for operand in sources:
            full = register_size(operand)
            if full is None:
                return _scalable_store(memory, is_predicate=operand.startswith("p"))
            source = NOTHING if has_status else REGISTERS.get(operand, (NOTHING, 0))[0]
            if source == memory.base and memory.writes_back:
                # It is not defined which of its values is stored.
                source = NOTHING
            parts.append((source, size or full))
        status = changes_first(text).steps if has_status else ()
        return _access(memory, (*_store_steps(memory, parts), *status))

    return handle


def load(size: int | None = None, *, is_signed: bool = False) -> Handler:
    """Return the handler of loads into general registers, or into vectors."""

    def handle(text: Aarch64Text) -> Effect | None:
        memory = text.memory
        if memory is None:
            return _literal(text, size, is_signed=is_signed)
        targets = [REGISTERS.get(operand, (NOTHING, 0)) for operand in text.operands]
        named = [register for register, _ in targets if register != NOTHING]
        if len({*named}) != len(named) or (memory.writes_back and memory.base in named):
            # It is not defined which of its new values a register has.
            return Effect(forget(*named, memory.base if memory.writes_back else NOTHING))
        steps: list[Step] = []
        offset = 0 if memory.is_pre else memory.offset
        for register, full in targets:
            part = size or full
            if register != NOTHING:
                loaded = _loaded(memory, register, full, offset, part, is_signed=is_signed)
                # The base is loaded last, as the others need it.
                steps = [*steps, *loaded] if register == memory.base else [*loaded, *steps]
            offset += part
        return _access(memory, steps)

    return handle


def _loaded(memory: Aarch64Memory, register: int, full: int, offset: int, size: int, *, is_signed: bool) -> list[Step]:
    """Return the steps that load a general register, of which `full` bytes are named."""
    if memory.base == NOTHING or memory.is_scalable or (is_signed and full != WORD_SIZE):
        return list(forget(register))
    if memory.index == NOTHING:
        if size == 1 and not is_signed:
            return [Step(Op.LIMIT, register, offset=0xFF)]
        return [Step(Op.LOAD, register, memory.base, offset, size, is_signed=is_signed)]
    steps = []
    index = memory.index
    if memory.index_size != WORD_SIZE:
        index = BETWEEN_STEPS
        steps = [Step(Op.MOVE, index, memory.index, size=memory.index_size, is_signed=memory.is_signed)]
    return [*steps, Step(Op.LOAD_INDEXED, register, memory.base, 0, size, index, memory.scale, is_signed)]


def _literal(text: Aarch64Text, size: int | None, *, is_signed: bool) -> Effect | None:
    """Return the effect of a load from a fixed distance to the instruction."""
    target, address = text.register(0), text.value(1)
    if text.is_vector or target is None or target[0] == NOTHING:
        return NO_EFFECT
    if address is None:
        return other(text)
    return Effect((Step(Op.LOAD, target[0], NOTHING, address, size or target[1], is_signed=is_signed),))


def atomic(changed: int | None, size: int | None = None, *, pairs: int = 1) -> Handler:
    """Return the handler of what reads and writes memory, and changes an operand, or `pairs` operands from there on."""

    def handle(text: Aarch64Text) -> Effect | None:
        if text.memory is None or not text.operands or text.is_vector:
            return other(text)
        full = pairs * (size or register_size(text.operands[0]) or _MAX_ACCESS_SIZE)
        registers = [text.register(n) for n in range(changed, changed + pairs)] if changed is not None else []
        steps = forget(*[register[0] for register in registers if register is not None])
        return _access(text.memory, (*_store_steps(text.memory, [(NOTHING, full)]), *steps))

    return handle


def tags(size: int) -> Handler:
    """Return the handler of what sets the tags of memory (MTE), and clears as many bytes of it."""

    def handle(text: Aarch64Text) -> Effect | None:
        if text.memory is None:
            return other(text)
        return _access(text.memory, _store_steps(text.memory, [(NOTHING, size)] if size else []))

    return handle


def authenticated_load(text: Aarch64Text) -> Effect | None:
    """Return the effect of LDRAA and LDRAB."""
    if text.memory is None:
        return other(text)
    target = text.register(0)
    steps = forget(NOTHING if target is None else target[0])
    # The base becomes the sum with the authenticated address, or one that faults.
    return Effect((*steps, *forget(text.memory.base)) if text.memory.is_pre else steps)


def _vector(text: Aarch64Text) -> Effect:
    """Return the effect of what has a vector for its first operand: general registers are only read by it."""
    memory = text.memory
    if memory is None:
        return Effect((FLAGS,)) if text.operands[0].startswith(("p", "{p", "{ p")) else NO_EFFECT
    if text.name.startswith("ld") and not _VECTOR_ATOMIC.match(text.name):
        return _access(memory, ())
    size = list_size(text.operands)
    if size is None and text.operands[0].startswith(("{", "z")):
        return _scalable_store(memory, count=_MAX_LIST)
    return _access(memory, _store_steps(memory, [(NOTHING, size or _MAX_ACCESS_SIZE)]))


def other(text: Aarch64Text) -> Effect | None:
    """Return the effect of an instruction that no table names; None where it names no register."""
    if text.is_vector:
        return _vector(text)
    named = dict.fromkeys(REGISTERS[operand][0] for operand in text.operands if operand in REGISTERS)
    if not named and text.memory is None:
        return None
    steps = (*forget(*named), FLAGS)
    if text.memory is None:
        return Effect(steps)
    return _access(text.memory, (*_store_steps(text.memory, [(NOTHING, _MAX_ACCESS_SIZE)]), *steps))


def cache(text: Aarch64Text) -> Effect:
    """Return the effect of DC and SYS, of which some clear a block of memory."""
    clears = text.operands[0] in ("zva", "gzva")
    if text.name == "sys" and text.operands[1:3] == ("c7", "c4"):
        clears = text.value(3) in (1, 4)
    register = text.register(len(text.operands) - 1)
    if not clears or register is None or register[0] == NOTHING:
        return NO_EFFECT
    return Effect((Step(Op.STORE, register[0], NOTHING, 1 - _MAX_ZVA_SIZE, 2 * _MAX_ZVA_SIZE - 1),))
