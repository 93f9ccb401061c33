# SPDX-License-Identifier: Apache-2.0
"""What is known before an instruction, and how an instruction changes it.

A state has values by registers, and by the places of memory in the frame that have them. A value is a base and an
offset in bytes. What is not known is absent. States are shared, and never changed once an instruction has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.instructions.effects import BETWEEN, NOTHING, RA_SIGN_STATE, Op, Step
from cfi2sframe.instructions.reasons import CodeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.instructions.effects import Abi

#: Bases of values: the CFA; the caller's FP and the return address; none (a number); no caller (a process's entry).
#: A base of 0 or more is what SP was set to by the instruction at that address.
CFA: Final = -1
CALLER_FP: Final = -2
RETURN_ADDRESS: Final = -3
NUMBER: Final = -4
NO_CALLER: Final = -5
_TABLE: Final = -6
#: What the word at an address has, which the dynamic loader may have written.
WORD: Final = -7

#: A base and an offset in bytes.
Value = tuple[int, int]


class TableWord(NamedTuple):
    """A word of a table at `vaddr`, times `factor`, plus `added`; words have `size` bytes. No value has this `base`."""

    base: int
    vaddr: int
    size: int
    is_signed: bool
    added: int = 0
    factor: int = 1


#: Values by registers and by places.
State = dict["int | Value", "Value | TableWord"]

#: Added to such an address where an earlier value of the same instruction is meant.
_OLDER: Final = 1 << 64
#: No address is smaller, nor the frame of which SP is moved by a register.
_SMALL: Final = 1 << 12
#: Registers and places of memory that a state knows at most. What a function saves, it saves first.
_MAX_PLACES: Final = 64


class RefusedError(Exception):
    """A piece of code is refused."""

    def __init__(self, reason: CodeReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def after(state: State, steps: tuple[Step, ...], vaddr: int, abi: Abi) -> State:
    """Return the state after the steps of the instruction at an address. Raises `RefusedError` where SP gets lost."""
    for step in steps:
        if step.op is not Op.FORGET or step.register in state:
            break
    else:
        return state
    new = dict(state)
    sp = abi.sp
    for step in steps:
        old = new.get(step.register)
        _OPERATIONS[step.op](new, step)
        value = new.get(step.register)
        if value is None and step.op in (Op.ADD, Op.MOVE_FRAME) and old is not None and _is_in_frame(old):
            # Another address in the frame, or below it: what is counted from there is known again.
            _forget_base(new, vaddr, sp)
            value = new[step.register] = (vaddr, 0)
        if step.register == sp and step.op is not Op.STORE and step.op is not Op.COMPARE:
            if value is None or not _is_in_frame(value):
                raise RefusedError(CodeReason.UNKNOWN)
            _drop_popped(new, value, abi.kept)
    new.pop(BETWEEN, None)
    return new


def joined(vaddr: int, known: State, state: State, sp: int) -> State:
    """Return what two states at an address have in common; `known` itself where that is all it says.

    Where SP differs, another register has to say where the CFA is: a loop that touches a large frame page by page.
    """
    if known[sp] != state[sp]:
        if not any(v[0] == CFA and state.get(k) == v for k, v in known.items() if isinstance(k, int) and k != sp):
            raise RefusedError(CodeReason.PATHS_DISAGREE)
        if known[sp] == (vaddr, 0):
            state = {**state, sp: (vaddr, 0)}
        else:
            common = {key: value for key, value in known.items() if state.get(key) == value}
            common[sp] = (vaddr, 0)
            return common
    if known.items() <= state.items():
        return known
    return {key: value for key, value in known.items() if state.get(key) == value}


def without_numbers(state: State) -> State:
    """Return a state without small numbers and what was loaded, of which each way to an address has others.

    Without them, most code is followed once. Addresses of tables stay.
    """
    return {
        key: value
        for key, value in state.items()
        if key == RA_SIGN_STATE or not (value[0] == WORD or (value[0] == NUMBER and 0 <= value[1] < _SMALL))
    }


def _set(state: State, register: int, value: Value | TableWord | None) -> None:
    if value is None:
        state.pop(register, None)
    else:
        state[register] = value


def plus(value: Value | TableWord | None, offset: int) -> Value | TableWord | None:
    """Return the sum of a value and a number; None where that is not followed."""
    if value is None or offset == 0:
        return value
    if isinstance(value, TableWord):
        return value._replace(added=value.added + offset)
    if value[0] in (CFA, NUMBER) or value[0] >= 0:
        return value[0], value[1] + offset
    return None


def _is_in_frame(value: Value | TableWord) -> bool:
    """Whether a value is an address in a frame."""
    return value[0] == CFA or value[0] >= 0


def _forget(state: State, step: Step) -> None:
    state.pop(step.register, None)


def _move(state: State, step: Step) -> None:
    _set(state, step.register, plus(state.get(step.source), step.offset))


def _number(state: State, step: Step) -> None:
    state[step.register] = (NUMBER, step.offset)


def _place(state: State, register: int, offset: int) -> Value | None:
    """Return a place of memory that a register and a number lead to, where that is in a frame."""
    value = state.get(register)
    return None if value is None or not _is_in_frame(value) else (value[0], value[1] + offset)


def _load(state: State, step: Step) -> None:
    place = _place(state, step.source, step.offset)
    base = (NUMBER, 0) if step.source == NOTHING else state.get(step.source)
    if place is None and base is not None and base[0] == NUMBER:
        state[step.register] = (WORD, base[1] + step.offset)
    else:
        _set(state, step.register, None if place is None else state.get(place))


def word_of(value: Value | TableWord | None) -> int | None:
    """Return the address of the word that a value is loaded from; None for other values."""
    return value[1] if value is not None and value[0] == WORD else None


def _store(state: State, step: Step) -> None:
    place = _place(state, step.register, step.offset)
    if place is None:
        return
    base, offset = place
    for key in [key for key in state if isinstance(key, tuple) and key[0] == base]:
        if offset - 8 < key[1] < offset + step.size:
            del state[key]
    value = state.get(step.source) if step.size == 8 else None
    if value is not None and len(state) < _MAX_PLACES:
        state[place] = value


def _add(state: State, step: Step) -> None:
    first, second = state.get(step.register), state.get(step.source)
    result: Value | TableWord | None = None
    if isinstance(second, TableWord) and second.added == 0 and second.factor == 1:
        if first is not None and first[0] == NUMBER:
            is_signed = step.is_signed if step.size < 8 else second.is_signed
            result = second._replace(added=first[1], factor=step.scale, is_signed=is_signed)
    elif second is not None and second[0] == NUMBER and step.size == 8:
        result = plus(first, second[1] * step.scale)
    elif first is not None and first[0] == NUMBER and step.scale == 1 and step.size == 8:
        result = plus(second, first[1])
    _set(state, step.register, result)


def _index(state: State, step: Step) -> None:
    known = [state.get(register) for register in (step.source, step.index)]
    table = next((value[1] + step.offset for value in known if value is not None and value[0] == NUMBER), None)
    if table is None and step.source == NOTHING:
        table = step.offset
    _set(state, step.register, None if table is None else TableWord(_TABLE, table, step.size, step.is_signed))


def _extend(state: State, step: Step) -> None:
    value = state.get(step.source)
    if isinstance(value, TableWord) and value.size <= step.size and value.added == 0:
        is_signed = step.is_signed if value.size == step.size else value.is_signed
        state[step.register] = value._replace(is_signed=is_signed)
    elif value is not None and value[0] == NUMBER and 0 <= value[1] < 1 << 8 * step.size - 1:
        state[step.register] = value
    else:
        state.pop(step.register, None)


def _compare(_state: State, _step: Step) -> None:
    pass


_OPERATIONS: Final[dict[Op, Callable[[State, Step], None]]] = {
    Op.FORGET: _forget,
    Op.MOVE: _move,
    Op.NUMBER: _number,
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.MOVE_FRAME: _forget,
    Op.ADD: _add,
    Op.INDEX: _index,
    Op.EXTEND: _extend,
    Op.COMPARE: _compare,
}


def apply(state: State, steps: Iterable[Step]) -> None:
    """Change a state as some steps do that leave SP alone."""
    for step in steps:
        _OPERATIONS[step.op](state, step)


def _drop_popped(state: State, sp: Value | TableWord, kept: int) -> None:
    """Forget what is below SP, and what other alignments of SP have saved."""
    base, offset = sp[:2]
    for key in [key for key in state if isinstance(key, tuple)]:
        if key[1] < offset - kept if key[0] == base else key[0] != CFA:
            del state[key]


def _forget_base(state: State, base: int, sp: int) -> None:
    """Forget what was counted from an earlier address that the same instruction has given."""
    older = (base + _OLDER, 0)
    is_sp = state.get(sp, older)[0] == base
    for key, value in list(state.items()):
        if value[0] in (base, older[0]) or (isinstance(key, tuple) and key[0] in (base, older[0])):
            del state[key]
    if is_sp:
        state[sp] = older
