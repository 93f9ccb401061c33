# SPDX-License-Identifier: Apache-2.0
"""Comparisons, branches, calls and returns of s390x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import JUMP_TARGET, NO_EFFECT, NOTHING, Condition, Effect, Flow, Op, Step
from cfi2sframe.code.s390x.names import COMPARES, CONDITIONS
from cfi2sframe.code.s390x.steps import FLAGS, RA, WORD, address_of, forget, load, store, sum_of
from cfi2sframe.code.s390x.text import FLOATS, S390xText

if TYPE_CHECKING:
    from collections.abc import Callable

PADDING: Final = Effect(is_padding=True)
#: Compilers jump into the midst of the jump itself, where no instruction is, for a trap.
_TRAP_DISTANCE: Final = 2
#: It has the number of a system call where the instruction has none.
_SYSTEM_CALL_REGISTER: Final = 1


def compares(size: int, *, is_signed: bool) -> Callable[[S390xText], Effect]:
    """Return the handler of comparisons of a register with another one or with a number."""
    return lambda text: Effect((comparison(Op.COMPARE, text, size, is_signed=is_signed),))


def comparison(op: Op, text: S390xText, size: int, *, is_signed: bool) -> Step:
    """Return the step that compares the low bytes of the first two operands."""
    number = text.number(1)
    if number is not None:
        return Step(op, text.register(0), offset=number, size=size, is_signed=is_signed)
    return Step(op, text.register(0), text.register(1), size=size, is_signed=is_signed)


def _branch(
    text: S390xText, place: int, steps: tuple[Step, ...] = (), condition: Condition = Condition.NONE
) -> Effect | None:
    """Return the effect of a branch whose operand is its target."""
    target = text.target(place)
    if target is None:
        return None
    if target == text.address + _TRAP_DISTANCE:
        return NO_EFFECT
    return Effect(steps, Flow.BRANCH, target, condition=condition)


def jump(text: S390xText) -> Effect | None:
    """Return the effect of a jump to an address in the text."""
    target = text.target(0)
    if target is None:
        return None
    if target == text.address + _TRAP_DISTANCE:
        return Effect(flow=Flow.STOP)
    return Effect(flow=Flow.JUMP, target=target)


def _target_steps(text: S390xText, place: int) -> tuple[Step, ...] | None:
    """Return the steps that give `JUMP_TARGET` its value; none for r0, which means no branch; None if not known."""
    register = text.register(place)
    if register == 0:
        return ()
    if register != NOTHING:
        return (Step(Op.MOVE, JUMP_TARGET, register),)
    if text.operands[place] == "0":
        # Register 0, in capstone 6.
        return ()
    memory = text.memory(place)
    return None if memory is None or memory.base == NOTHING else address_of(JUMP_TARGET, memory)


def jump_indirect(text: S390xText) -> Effect | None:
    """Return the effect of `br` and `b`: a return where the address is in r14, as it is."""
    steps = _target_steps(text, 0)
    if steps is None or not steps:
        return NO_EFFECT if steps == () and text.name == "br" else None
    is_return = len(steps) == 1 and steps[0].source == RA and not steps[0].offset
    return Effect(steps, Flow.RETURN if is_return else Flow.JUMP_INDIRECT)


def jump_to_loaded(text: S390xText) -> Effect | None:
    """Return the effect of `bi`, which jumps to an address in memory."""
    return Effect((load(JUMP_TARGET, text.memory(0), WORD),), Flow.JUMP_INDIRECT)


def branch_to_loaded(condition: Condition) -> Callable[[S390xText], Effect | None]:
    """Return the handler of branches to an address in memory."""
    return lambda text: Effect((load(JUMP_TARGET, text.memory(0), WORD),), Flow.BRANCH_INDIRECT, condition=condition)


def _branch_indirect(
    text: S390xText, place: int, steps: tuple[Step, ...] = (), condition: Condition = Condition.NONE
) -> Effect | None:
    target = _target_steps(text, place)
    if target is None:
        return None
    if not target:
        return Effect(steps)
    return Effect((*steps, *target), Flow.BRANCH_INDIRECT, condition=condition)


def call(text: S390xText) -> Effect | None:
    """Return the effect of `brasl` and `bras`: only r14, or r0, which no address can be made with, tell of a call."""
    link, target = text.register(0), text.target(1)
    if target is None or link == NOTHING:
        return None
    steps = (Step(Op.CONSTANT, link, offset=text.end),)
    if target == text.end:
        return Effect(steps)
    return Effect(steps, Flow.CALL if link in (RA, 0) else Flow.JUMP, target)


def call_indirect(text: S390xText) -> Effect | None:
    """Return the effect of `basr` and its kin, which without a target give the address of the next instruction."""
    link, target = text.register(0), _target_steps(text, 1)
    if target is None or link == NOTHING:
        return None
    steps = (*target, Step(Op.CONSTANT, link, offset=text.end))
    if not target:
        return Effect(steps)
    return Effect(steps, Flow.CALL_INDIRECT if link in (RA, 0) else Flow.JUMP_INDIRECT)


def counts(step: int | None) -> Callable[[S390xText], Effect | None]:
    """Return the handler of branches on a count, which is in all 8 bytes of a register where `step` is given."""

    def handle(text: S390xText) -> Effect | None:
        register = text.register(0)
        steps = (Step(Op.FORGET, register) if step is None else Step(Op.MOVE, register, register, step),)
        # A register, or an address in memory, or an address.
        if text.name.startswith("br"):
            return _branch(text, 1, steps)
        # The address is computed before the register is changed.
        target = _target_steps(text, 1)
        if target is None:
            return None
        return Effect((*target, *steps), Flow.BRANCH_INDIRECT) if target else Effect(steps)

    return handle


def indexes(text: S390xText) -> Effect | None:
    """Return the effect of a branch on an index, which adds to a register."""
    target, added = text.register(0), text.register(1)
    steps = sum_of(target, target, added) if text.name.endswith("g") else forget((target,))
    if text.name.startswith("br"):
        return _branch(text, 2, steps)
    place = _target_steps(text, 2)
    return Effect((*place, *steps), Flow.BRANCH_INDIRECT) if place else None


def conditional(text: S390xText) -> Effect | None:
    """Return the effect of the forms whose condition is a number: `brc`, `brcl`, `bcr` and `bc`."""
    mask, place = text.number(0), 1
    if mask == 0:
        return PADDING
    if mask is None:
        return None
    return _branch(text, place) if text.name.startswith("br") else _branch_indirect(text, place)


def on_condition(condition: Condition) -> Callable[[S390xText], Effect | None]:
    """Return the handler of branches to an address in the text."""
    return lambda text: _branch(text, 0, condition=condition)


def on_condition_indirect(condition: Condition) -> Callable[[S390xText], Effect | None]:
    """Return the handler of branches to an address in a register, or to that of an operand in memory."""
    return lambda text: _branch_indirect(text, 0, condition=condition)


def compares_and_branches() -> dict[str, Callable[[S390xText], Effect | None]]:
    """Return the handlers of the instructions that compare and branch."""
    found = {}
    for stem, (size, is_signed) in COMPARES.items():
        for kind, branch in (("j", _branch), ("b", _branch_indirect)):
            for suffix, condition in (("", None), *CONDITIONS.items()):
                found[stem + kind + suffix] = _after_comparison(size, condition, branch, is_signed=is_signed)
    return found


def _after_comparison(
    size: int, condition: Condition | None, branch: Callable[..., Effect | None], *, is_signed: bool
) -> Callable[[S390xText], Effect | None]:
    def handle(text: S390xText) -> Effect | None:
        step = comparison(Op.COMPARE_AND_BRANCH, text, size, is_signed=is_signed)
        # Without a condition in the name, it is the third operand, a number.
        if condition is None:
            return branch(text, 3)
        return branch(text, 2, (step,), condition)

    return handle


def svc(text: S390xText) -> Effect:
    """Return the effect of a system call of Linux, which changes r2; its number is in r1 where the text has 0."""
    number = text.number(0)
    given = (
        Step(Op.CONSTANT, JUMP_TARGET, offset=number) if number else Step(Op.MOVE, JUMP_TARGET, _SYSTEM_CALL_REGISTER)
    )
    return Effect((given, *forget((2,)), FLAGS), Flow.SYSTEM_CALL)


def exrl(text: S390xText) -> Effect | None:
    """Return the effect of `exrl`, whose target is another instruction."""
    target = text.target(1)
    return None if target is None else Effect(flow=Flow.EXECUTE, target=target)


def tbegin(text: S390xText) -> Effect | None:
    """Return the effect of the start of a transaction: where it is aborted, the registers that it names get back."""
    mask = text.number(1)
    if mask is None or mask & 0xFF00 != 0xFF00:
        return None
    return Effect((*store(text.memory(0), 256), *forget(FLOATS), FLAGS))
