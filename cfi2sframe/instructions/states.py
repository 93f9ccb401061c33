# SPDX-License-Identifier: Apache-2.0
"""States of registers and stack before an instruction, and the changes that instructions and calls make.

A state maps registers, and words of the frame, to values. A value is a base and an offset in bytes; unknown values are
absent. States are shared, and never changed once an instruction has one.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.instructions.effects import BETWEEN, NOTHING, RA_SIGN_STATE, Abi, Op, Step
from cfi2sframe.why import Reason

#: A base and an offset in bytes.
Value = tuple[int, int]

#: Bases of values: the CFA; none (a number); a word of a table; the contents of the word at an address, which the
#: dynamic loader may have written. A base of 0 or more is the value that the instruction at that address gave SP, or
#: another register in the frame. Values with bases below NUMBER may be equal to any others.
CFA: Final = -1
NUMBER: Final = -4
_TABLE: Final = -6
WORD: Final = -7
#: Values at an entry: the caller's FP, the return address, and in place of this, where a process begins, no caller.
CALLER_FP: Final = (-2, 0)
RETURN_ADDRESS: Final = (-3, 0)
NO_CALLER: Final = (-5, 0)


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

_NO_ADDRESS: Final = (NUMBER, 0)
#: Added to the address that is a base, for an earlier value of the same instruction.
_OLDER: Final = 1 << 64
#: Numbers below are no addresses, and no sizes of frames for which SP is moved by a register.
_SMALL: Final = 1 << 12
#: Registers and words of a state, at most: functions save first what they save.
_MAX_PLACES: Final = 64


class Underived(NamedTuple):
    """Code at the virtual addresses `[start_vaddr, end_vaddr)` for which the instructions give no rows, and why."""

    start_vaddr: int
    end_vaddr: int
    reason: Reason


class RefusedError(Exception):
    """A piece of code is refused."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def ra_place(arch: Arch) -> int | Value:
    """Return the key of the RA in the state at a function's entry: a register, or a word of the frame."""
    return (CFA, arch.fixed_ra_offset) if arch.fixed_ra_offset else arch.ra_register


def entry_state(arch: Arch) -> State:
    """Return the state that a call leaves at a function's entry."""
    state: State = {
        arch.sp_register: (CFA, -arch.entry_cfa_offset),
        arch.fp_register: CALLER_FP,
        ra_place(arch): RETURN_ADDRESS,
    }
    return state if arch.fixed_ra_offset else {**state, RA_SIGN_STATE: (NUMBER, 0)}


def after(state: State, steps: tuple[Step, ...], vaddr: int, arch: Arch, kept: int) -> State:
    """Return the state after the steps of the instruction at an address.

    `kept` bytes below SP are remembered when it moves up. Raises `RefusedError` where SP gets lost and FP does not lead
    to the CFA, or where the instruction contradicts the state.
    """
    if all(step.op is Op.FORGET and step.register not in state for step in steps):
        return state
    new = dict(state)
    for step in steps:
        if step.op is Op.STORE:
            _store(new, step)
        elif step.op is not Op.COMPARE:
            _assign(new, step, vaddr, arch, kept)
    new.pop(BETWEEN, None)
    return new


def after_call(state: State, abi: Abi, changed: int, *, spoils_fp: bool) -> State:
    """Return the state after a call returns from a function that has `changed` registers (bits)."""
    arch = abi.arch
    changed &= abi.clobbered
    if not arch.fixed_ra_offset:
        changed |= 1 << arch.ra_register
    if spoils_fp:
        changed |= 1 << arch.fp_register
    base, offset = state[arch.sp_register][:2]
    lowest = offset + abi.callee_area
    return {
        key: value
        for key, value in state.items()
        if (not changed >> key & 1 if isinstance(key, int) else key[0] != base or key[1] >= lowest)
    }


def _assign(state: State, step: Step, vaddr: int, arch: Arch, kept: int) -> None:
    """Give a step's register its value. Raises `RefusedError` as `after` does."""
    register, sp = step.register, arch.sp_register
    old, value = state.get(register), _result(state, step)
    if register == RA_SIGN_STATE and value == old == (NUMBER, 0):
        # An RA that is not signed is not authenticated: it was signed before.
        raise RefusedError(Reason.NOT_PROVEN)
    if value is None and step.op in (Op.ADD, Op.MOVE_FRAME) and old is not None and _is_in_frame(old):
        # Another address in the frame, or below it, to count from.
        _forget_base(state, vaddr, sp)
        value = (vaddr, 0)
    if register == sp and (value is None or not _is_in_frame(value)):
        if state.get(arch.fp_register, _NO_ADDRESS)[0] != CFA:
            raise RefusedError(Reason.UNKNOWN)
        # Another stack, perhaps: a return is proved only after a switch back.
        _forget_base(state, vaddr, sp)
        value = (vaddr, 0)
    _set(state, register, value)
    if register == sp and value is not None:
        base, lowest = value[0], value[1] - kept
        for key in [key for key in state if isinstance(key, tuple) and key[0] == base and key[1] < lowest]:
            del state[key]


def apply(state: State, steps: Iterable[Step]) -> None:
    """Change a state as steps do that leave SP alone."""
    for step in steps:
        if step.op is Op.STORE:
            _store(state, step)
        elif step.op is not Op.COMPARE:
            _set(state, step.register, _result(state, step))


def _set(state: State, register: int, value: Value | TableWord | None) -> None:
    if value is None:
        state.pop(register, None)
    else:
        state[register] = value


def joined(vaddr: int, before: State, state: State, sp: int) -> State:
    """Return what the state before and another one at an address have in common; `before` itself if that is all of it.

    Where SP differs, another register has to lead to the CFA, as in a loop that touches a large frame page by page.
    Raises `RefusedError` where none does.
    """
    if before[sp] != state[sp]:
        if not any(v[0] == CFA and state.get(k) == v for k, v in before.items() if isinstance(k, int) and k != sp):
            raise RefusedError(Reason.PATHS_DISAGREE)
        state = {**state, sp: (vaddr, 0)}
        if before[sp] != (vaddr, 0):
            before = {**before, sp: (vaddr, 0)}
    if before.items() <= state.items():
        return before
    return {key: value for key, value in before.items() if state.get(key) == value}


def without_numbers(state: State) -> State:
    """Return a state without small numbers and loaded words, which differ between the paths to an address.

    Without them, most code is followed once. Addresses of tables stay.
    """
    return {
        key: value
        for key, value in state.items()
        if key == RA_SIGN_STATE or not (value[0] == WORD or (value[0] == NUMBER and 0 <= value[1] < _SMALL))
    }


def plus(value: Value | TableWord | None, offset: int) -> Value | TableWord | None:
    """Return the sum of a value and a number; None where it is not followed."""
    if value is None or offset == 0:
        return value
    if isinstance(value, TableWord):
        return value._replace(added=value.added + offset)
    if value[0] in (CFA, NUMBER) or value[0] >= 0:
        return value[0], value[1] + offset
    return None


def word_of(value: Value | TableWord | None) -> int | None:
    """Return the address of the word that a value is loaded from; None for other values."""
    return value[1] if value is not None and value[0] == WORD else None


def _is_in_frame(value: Value | TableWord) -> bool:
    """Return whether a value is an address in a frame."""
    return value[0] == CFA or value[0] >= 0


def _result(state: State, step: Step) -> Value | TableWord | None:
    """Return the value that a step gives its register; None for an unknown one."""
    op, value = step.op, state.get(step.source)
    if op is Op.MOVE:
        return plus(value, step.offset)
    if op is Op.NUMBER:
        return NUMBER, step.offset
    if op is Op.LOAD:
        if value is not None and _is_in_frame(value):
            return state.get((value[0], value[1] + step.offset))
        number = (NUMBER, 0) if step.source == NOTHING else value
        return (WORD, number[1] + step.offset) if number is not None and number[0] == NUMBER else None
    if op is Op.ADD:
        return _sum(state.get(step.register), value, step)
    if op is Op.INDEX:
        numbers = [part[1] for part in (value, state.get(step.index)) if part is not None and part[0] == NUMBER]
        if numbers or step.source == NOTHING:
            return TableWord(_TABLE, sum(numbers[:1], step.offset), step.size, step.is_signed)
    if op is Op.SIGN_EXTEND:
        word = state.get(step.register)
        return word._replace(is_signed=True) if isinstance(word, TableWord) and word.size == 4 else None
    return None


def _sum(first: Value | TableWord | None, second: Value | TableWord | None, step: Step) -> Value | TableWord | None:
    """Return the result of an addition: a word of a table plus a number, or a value plus a number."""
    number = first[1] if first is not None and first[0] == NUMBER else None
    if isinstance(second, TableWord) and second.added == 0 and second.factor == 1:
        is_signed = step.is_signed if step.size < 8 else second.is_signed
        return None if number is None else second._replace(added=number, factor=step.scale, is_signed=is_signed)
    if step.size < 8:
        return None
    if second is not None and second[0] == NUMBER:
        return plus(first, second[1] * step.scale)
    return plus(second, number) if number is not None and step.scale == 1 else None


def _store(state: State, step: Step) -> None:
    to = state.get(step.register)
    if to is None or not _is_in_frame(to):
        return
    base, offset = to[0], to[1] + step.offset
    for key in [key for key in state if isinstance(key, tuple) and key[0] == base]:
        if offset - 8 < key[1] < offset + step.size:
            del state[key]
    value = state.get(step.source) if step.size == 8 else None
    if value is not None and len(state) < _MAX_PLACES:
        state[base, offset] = value


def _forget_base(state: State, base: int, sp: int) -> None:
    """Forget what was counted from the address that an instruction gave when it was last followed."""
    older = (base + _OLDER, 0)
    is_sp = state.get(sp, older)[0] == base
    for key, value in list(state.items()):
        if value[0] in (base, older[0]) or (isinstance(key, tuple) and key[0] in (base, older[0])):
            del state[key]
    if is_sp:
        state[sp] = older
