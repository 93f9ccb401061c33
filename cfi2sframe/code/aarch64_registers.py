# SPDX-License-Identifier: Apache-2.0
"""What AArch64's instructions on general registers do: copies, sums, comparisons, numbers with a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.aarch64_text import SP, WORD_SIZE, as_number, as_signed
from cfi2sframe.code.effects import BETWEEN_STEPS, NO_EFFECT, NOTHING, Effect, Op, Step

if TYPE_CHECKING:
    from cfi2sframe.code.aarch64_text import Aarch64Text

#: Limits of indices beyond this are of no table of jumps.
_MAX_LIMIT: Final = 0xFFFF
_LOW_BYTES: Final = {"b": 1, "h": 2, "w": 4, "x": 8}
_MASKS: Final = {0xFF: 1, 0xFFFF: 2, 0xFFFFFFFF: 4}
#: The flags tell nothing of two operands.
FLAGS: Final = Step(Op.COMPARE, NOTHING)


def forget(*registers: int) -> tuple[Step, ...]:
    """Return the steps that forget registers; `NOTHING` is none."""
    return tuple([Step(Op.FORGET, register) for register in registers if register != NOTHING])


def changes_first(text: Aarch64Text) -> Effect:
    """Return the effect of what changes its first operand, and in no way that is followed."""
    target = text.register(0)
    return NO_EFFECT if target is None else Effect(forget(target[0]))


def changes_first_and_flags(text: Aarch64Text) -> Effect:
    """Return the effect of what changes the flags, too."""
    return Effect((FLAGS, *changes_first(text).steps))


def _number(register: int, size: int, value: int) -> Effect:
    return Effect((Step(Op.NUMBER, register, offset=as_signed(value) if size == WORD_SIZE else value & 0xFFFFFFFF),))


def mov(text: Aarch64Text) -> Effect:
    """Return the effect of MOV, MOVZ, MOVN."""
    target, source, value = text.register(0), text.register(1), text.value(1)
    if target is None or target == (SP, 4) or target[0] == NOTHING:
        return changes_first(text)
    if value is not None:
        return _number(*target, ~value if text.name == "movn" else value)
    if source is None:
        return changes_first(text)
    if source[0] == NOTHING:
        return _number(*target, 0)
    return Effect((Step(Op.MOVE, target[0], source[0], size=target[1]),))


def orr(text: Aarch64Text) -> Effect:
    """Return the effect of ORR, which some versions of capstone write for a MOV of a number."""
    target, value = text.register(0), text.value(2)
    if target is None or value is None or text.operands[1] not in ("xzr", "wzr") or target == (SP, 4):
        return changes_first(text)
    return _number(*target, value)


def address(text: Aarch64Text) -> Effect:
    """Return the effect of ADR and ADRP, whose operand is the address itself."""
    target, value = text.register(0), text.value(1)
    if target is None or value is None or target[0] == NOTHING:
        return changes_first(text)
    return Effect((Step(Op.CONSTANT, target[0], offset=value),))


def add_or_sub(text: Aarch64Text) -> Effect:
    """Return the effect of ADD and SUB, with or without flags, of any form."""
    is_difference = text.name.startswith("sub")
    flags: tuple[Step, ...] = ()
    if text.name.endswith("s"):
        flags = (_comparison(text, 1),) if is_difference else (FLAGS,)
    target, source = text.register(0), text.register(1)
    if target is None or source is None or target[1] != WORD_SIZE or NOTHING in (target[0], source[0]):
        return Effect((*flags, *changes_first(text).steps))
    value, addend = text.value(2), text.register(2)
    if value is not None:
        return Effect((*flags, Step(Op.MOVE, target[0], source[0], -value if is_difference else value)))
    if addend is None or addend[0] == NOTHING:
        return Effect((*flags, *changes_first(text).steps))
    return Effect((*flags, *_register_sum(text, target[0], source[0], addend, is_difference=is_difference)))


def _register_sum(
    text: Aarch64Text, target: int, source: int, addend: tuple[int, int], *, is_difference: bool
) -> tuple[Step, ...]:
    """Return the steps of a sum of registers, of which the second may be extended and shifted."""
    kind, _, amount = text.operands[3].partition(" ") if len(text.operands) > 3 else ("", "", "")
    shift = as_number(amount) or 0
    size = _LOW_BYTES[kind[-1]] if kind[1:3] == "xt" else addend[1]
    if kind not in ("", "lsl") and kind[1:3] != "xt":
        return forget(target)
    is_signed = size != WORD_SIZE and kind.startswith("s")
    addition = Step(
        Op.ADD, target, addend[0], 0, size, NOTHING, -(1 << shift) if is_difference else 1 << shift, is_signed
    )
    if target == source:
        return (addition,)
    if target != addend[0]:
        return (Step(Op.MOVE, target, source), addition)
    if addition.scale == 1 and size == WORD_SIZE:
        return (Step(Op.ADD, target, source),)
    copy = Step(Op.MOVE, BETWEEN_STEPS, target)
    return (copy, Step(Op.MOVE, target, source), addition._replace(source=BETWEEN_STEPS))


def _comparison(text: Aarch64Text, first: int) -> Step:
    """Return the comparison of two operands, the first of which is given by its number."""
    left, right, value = text.register(first), text.register(first + 1), text.value(first + 1)
    if left is None or left[0] == NOTHING:
        return FLAGS
    if value is not None:
        return Step(Op.COMPARE, left[0], offset=value, size=left[1])
    # With a shift or an extension it is another number.
    if right is None or right[0] == NOTHING or len(text.operands) > first + 2:
        return FLAGS
    return Step(Op.COMPARE, left[0], right[0], size=left[1])


def cmp(text: Aarch64Text) -> Effect:
    """Return the effect of CMP."""
    return Effect((_comparison(text, 0),))


def _low_bytes(text: Aarch64Text, size: int, *, is_signed: bool = False) -> Effect:
    """Return the effect of a copy of the low bytes of a register."""
    target, source = text.register(0), text.register(1)
    if target is None or source is None or NOTHING in (target[0], source[0]):
        return changes_first(text)
    if target[0] == SP or (is_signed and target[1] != WORD_SIZE):
        return changes_first(text)
    return Effect((Step(Op.MOVE, target[0], source[0], size=size, is_signed=is_signed),))


def extend(text: Aarch64Text) -> Effect:
    """Return the effect of SXTB, UXTH and their like."""
    return _low_bytes(text, _LOW_BYTES[text.name[-1]], is_signed=text.name[0] == "s")


def _limited(text: Aarch64Text, limit: int | None) -> Effect:
    target = text.register(0)
    if target is None or target[0] in (NOTHING, SP) or limit is None or not 0 <= limit <= _MAX_LIMIT:
        return changes_first(text)
    return Effect((Step(Op.LIMIT, target[0], offset=limit),))


def mask(text: Aarch64Text) -> Effect:
    """Return the effect of AND: a copy of the low bytes, or a number with a limit."""
    bits = text.value(2)
    size = _MASKS.get(bits or 0)
    return _low_bytes(text, size) if size is not None else _limited(text, bits)


def bit_field(text: Aarch64Text) -> Effect:
    """Return the effect of UBFX."""
    lowest, width = text.value(2), text.value(3)
    if lowest == 0 and width in (8, 16, 32):
        return _low_bytes(text, width // 8)
    return _limited(text, None if width is None else (1 << width) - 1)


def shift_right(text: Aarch64Text) -> Effect:
    """Return the effect of LSR."""
    target, distance = text.register(0), text.value(2)
    return _limited(text, None if target is None or distance is None else (1 << 8 * target[1]) - 1 >> distance)


def condition_set(text: Aarch64Text) -> Effect:
    """Return the effect of CSET."""
    return _limited(text, 1)
