# SPDX-License-Identifier: Apache-2.0
"""What instructions make of the values that are known before them: a machine that applies their steps to states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import JUMP_TARGET, NOTHING, Op
from cfi2sframe.code.values import (
    CALLER_FP,
    CFA,
    CONSTANT,
    LIMITED,
    LOADED,
    MAX_TARGETS,
    NO_CALLER,
    NO_LIMIT,
    RETURN_ADDRESS,
    SCALED,
    SET_AT,
    State,
    TableWord,
    Targets,
    Value,
    is_limited,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.code.blocks import Change
    from cfi2sframe.code.effects import CodeArch, Step

_WORD: Final = 8
_MAX_SHIFT: Final = 3
_MASK: Final = (1 << 64) - 1
#: Slots that are followed at one time; functions with more have arrays that are filled word by word.
_MAX_SLOTS: Final = 64


class Machine:
    """Applies the steps of instructions to states, and joins states; `addresses` are those of code and data."""

    def __init__(self, arch: CodeArch, addresses: range) -> None:
        self.arch = arch
        self.addresses = addresses
        self.sp = arch.sp_register
        self.entry_sp = Value(CFA, arch.entry_sp_offset)

    def entry_state(self, *, has_caller: bool = True) -> State:
        """Return the state at a function's entry; without a caller, at that of the process."""
        arch = self.arch
        ra = Value(RETURN_ADDRESS if has_caller else NO_CALLER, 0)
        registers = {arch.sp_register: Value(CFA, arch.entry_sp_offset), arch.fp_register: Value(CALLER_FP, 0)}
        slots: dict[Value, Value] = {}
        if arch.ra_slot is None:
            registers[arch.ra_register] = ra
        else:
            slots[Value(CFA, arch.ra_slot)] = ra
        return State(registers, slots)

    def run(self, state: State, changes: Iterable[Change]) -> None:
        """Change a state by the instructions of a block."""
        registers = state.registers
        for vaddr, _, steps, _ in changes:
            for step in steps:
                # Most steps forget what is not known anyway.
                if step.op is not Op.FORGET or step.register in registers or state.targets or step.register == self.sp:
                    self.apply(state, step, vaddr)

    def apply(self, state: State, step: Step, address: int) -> None:
        """Change a state by one step of the instruction at an address."""
        op, register, source, offset, size, _, _, _ = step
        registers = state.registers
        if op is Op.MOVE:
            value = registers.get(source)
            if size != _WORD:
                # Of a short copy, only the limit of a number holds.
                value = value if value is not None and is_limited(value) else None
            elif value is not None and offset:
                value = self._sum(value, offset)
            targets = state.targets.get(source) if state.targets and size == _WORD else None
            self._set(state, register, value, address)
            if targets is not None:
                state.targets[register] = frozenset([_moved(target, offset) for target in targets])
        elif op is Op.FORGET:
            self._set(state, register, None, address)
        elif op is Op.STORE:
            self._store(state, register, source, offset, size)
        elif op is Op.LOAD:
            self._load(state, step, address)
        elif op is Op.CONSTANT:
            known = registers.get(register)
            if size == _WORD:
                self._set(state, register, Value(CONSTANT, offset & _MASK), address)
            elif known is not None and known.base == CONSTANT:
                self._set(state, register, Value(CONSTANT, known.offset & ~0xFF | offset), address)
            else:
                self._set(state, register, None, address)
        elif op is Op.ADD:
            self._add(state, step, address)
        elif op is Op.LIMIT:
            self._set(state, register, Value(LIMITED, offset), address)
        elif op is Op.SCALE:
            self._scale(state, step, address)
        else:
            self._load_indexed(state, step, address)

    def push(self, state: State, address: int) -> None:
        """Change a state as a push of an unknown word does."""
        self._store(state, self.sp, NOTHING, -_WORD, _WORD)
        sp = state.registers.get(self.sp)
        self._set(state, self.sp, None if sp is None else self._sum(sp, -_WORD), address)

    def after_call(self, state: State, changed: int, *, keeps_fp: bool = True) -> None:
        """Change a state as a call does that comes back; `changed` has a bit for each register that is lost."""
        for register in [register for register in state.registers if changed >> register & 1]:
            del state.registers[register]
        state.registers.pop(JUMP_TARGET, None)
        if state.targets:
            state.targets = {r: t for r, t in state.targets.items() if r != JUMP_TARGET and not changed >> r & 1}
        if not keeps_fp:
            state.registers.pop(self.arch.fp_register, None)
        sp = state.registers.get(self.sp)
        # What is below SP belongs to the function that was called.
        if sp is not None:
            for place in [p for p in state.slots if p.base == sp.base and p.offset < sp.offset]:
                del state.slots[place]

    def drop_restored(self, state: State, *, has_moved_sp: bool) -> None:
        """Forget, before a jump that may be a tail call, where the RA and FP were saved that have been loaded again.

        Other callers of what the jump leads to have saved nothing there. Signal handlers spare the slots, so that CFI
        may name them up to the jump. Slots below SP have been popped; those above, as on s390x, have been loaded again
        only if the block before the jump has moved SP.
        """
        registers = state.registers
        if registers.get(self.sp) != self.entry_sp:
            return
        restored = (registers.get(self.arch.ra_register), registers.get(self.arch.fp_register))
        for place in [p for p, value in state.slots.items() if p.base == CFA and value in restored]:
            if has_moved_sp or place < self.entry_sp:
                del state.slots[place]

    @staticmethod
    def _sum(value: Value, offset: int) -> Value | None:
        base = value.base
        if base in (CFA, CALLER_FP) or base >= SET_AT:
            return Value(base, value.offset + offset)
        if base == CONSTANT:
            return Value(CONSTANT, value.offset + offset & _MASK)
        return None

    def _set(self, state: State, register: int, value: Value | None, address: int) -> None:
        if state.targets:
            state.targets.pop(register, None)
            for other, targets in state.targets.items():
                if any(isinstance(target, TableWord) and target.origin == register for target in targets):
                    state.targets[other] = frozenset([_without_origin(target, register) for target in targets])
        if value is not None:
            if register == self.sp and state.slots:
                self._drop_popped(state, value)
            state.registers[register] = value
        elif register == self.sp:
            self._set_sp(state, address)
        else:
            state.registers.pop(register, None)

    def _drop_popped(self, state: State, sp: Value) -> None:
        """Forget the slots that signal handlers may write to once SP has this value, wherever SP is later."""
        lowest = sp.offset - self.arch.red_zone
        for place in [p for p in state.slots if p.base == sp.base and p.offset < lowest]:
            del state.slots[place]

    @staticmethod
    def _forget_base(state: State, base: int) -> None:
        for register in [r for r, value in state.registers.items() if value.base == base]:
            del state.registers[register]
        for place in [p for p, value in state.slots.items() if base in (p.base, value.base)]:
            del state.slots[place]

    def _set_sp(self, state: State, address: int) -> None:
        """Give SP an unknown value, with a base of its own: what is saved in the new frame has its place."""
        base = SET_AT + address
        # In a loop, what the instruction has set SP to before is another value.
        self._forget_base(state, base)
        state.registers[self.sp] = Value(base, 0)

    def _store(self, state: State, register: int, source: int, offset: int, size: int) -> None:
        to = state.registers.get(register)
        if to is None or not (to.base == CFA or to.base >= SET_AT):
            return
        base, first = to.base, to.offset + offset
        slots = state.slots
        if slots:
            for place in [p for p in slots if p.base == base and first - _WORD < p.offset < first + size]:
                del slots[place]
        value = state.registers.get(source) if source != NOTHING and size == _WORD else None
        if value is not None and value.base in (CFA, CALLER_FP, RETURN_ADDRESS, NO_CALLER) and len(slots) < _MAX_SLOTS:
            slots[Value(base, first)] = value

    def _load(self, state: State, step: Step, address: int) -> None:
        _, register, source, offset, size, _, _, _ = step
        value: Value | None = None
        if size == _WORD:
            if source == NOTHING:
                value = Value(LOADED, offset & _MASK)
            else:
                origin = state.registers.get(source)
                if origin is not None and origin.base == CONSTANT:
                    value = Value(LOADED, origin.offset + offset & _MASK)
                elif origin is not None:
                    value = state.slots.get(Value(origin.base, origin.offset + offset))
        self._set(state, register, value, address)

    def _load_indexed(self, state: State, step: Step, address: int) -> None:
        _, register, source, offset, size, index, scale, is_signed = step
        if scale == 1 and source != NOTHING and state.targets_of(source) is None:
            source, index = index, source
        number = state.registers.get(index)
        limit = number.offset if number is not None and is_limited(number) and number.offset < NO_LIMIT else None
        if number is not None and SCALED <= number.base < SET_AT:
            scale <<= number.base - SCALED
        bases = Targets((0,)) if source == NOTHING else state.targets_of(source)
        self._set(state, register, None, address)
        if bases is None:
            return
        origin = source if source != register else NOTHING
        tables = [
            TableWord(base + offset & _MASK, scale, size, is_signed, limit, 0, 1, origin, base)
            for base in bases
            if not isinstance(base, TableWord)
        ]
        if len(tables) == len(bases):
            state.targets[register] = Targets(tables)

    def _scale(self, state: State, step: Step, address: int) -> None:
        known, shift = state.registers.get(step.register), step.scale.bit_length() - 1
        limit = known.offset if known is not None and known.base == LIMITED else NO_LIMIT
        value = Value(SCALED + shift, limit) if 0 <= shift <= _MAX_SHIFT and step.scale == 1 << shift else None
        self._set(state, step.register, value, address)

    def _add(self, state: State, step: Step, address: int) -> None:
        register, source, scale, size = step.register, step.source, step.scale, step.size
        first, second = state.registers.get(register), state.registers.get(source)
        is_plain = scale == 1 and size == _WORD
        sums = _sums(state, register, step) or (
            _sums(state, source, step._replace(source=register)) if is_plain else None
        )
        value: Value | None = None
        if second is not None and second.base == CONSTANT and first is not None and size == _WORD:
            value = self._sum(first, signed(second.offset) * scale)
        elif first is not None and first.base == CONSTANT and second is not None and is_plain:
            value = self._sum(second, signed(first.offset))
        self._set(state, register, value, address)
        if sums is not None:
            state.targets[register] = sums


def _moved(target: int | TableWord, offset: int) -> int | TableWord:
    if isinstance(target, TableWord):
        return target._replace(added=target.added + offset & _MASK)
    return target + offset & _MASK


def _without_origin(target: int | TableWord, register: int) -> int | TableWord:
    return target._replace(origin=NOTHING) if isinstance(target, TableWord) and target.origin == register else target


def _sums(state: State, base: int, step: Step) -> Targets | None:
    """Return the sums of a register with addresses and another one with words of tables (`Op.ADD`)."""
    words, bases = state.targets.get(step.source), state.targets_of(base)
    if words is None or bases is None:
        return None
    found: set[int | TableWord] = set()
    for each in words:
        if not isinstance(each, TableWord) or step.size < each.size:
            return None
        word = each._replace(is_signed=step.is_signed) if step.size == each.size < _WORD else each
        # Where several tables meet, each belongs with the address that it was found by.
        added = (each.origin_vaddr,) if each.origin == base else bases
        for number in added:
            if isinstance(number, TableWord):
                return None
            total = word.added * step.scale + number & _MASK
            found.add(word._replace(added=total, factor=word.factor * step.scale))
    return Targets(found) if len(found) <= MAX_TARGETS else None
