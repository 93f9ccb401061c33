# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions against an emulator that executes them, one by one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import JUMP_TARGET, Flow
from cfi2sframe.code.s390x import S390X_CODE
from tests.support.code.concrete import Expected, expect
from tests.support.code.s390x_machine import CODE_VADDR, WINDOW_SIZE, WINDOW_VADDR, Machine, State

if TYPE_CHECKING:
    from cfi2sframe.code.effects import Effect

_WINDOW_END: Final = WINDOW_VADDR + WINDOW_SIZE


def differences(effect: Effect, before: State, after: State, size: int) -> list[str]:
    """Return what an effect says otherwise than the machine."""

    def read(vaddr: int, count: int) -> int | None:
        if not WINDOW_VADDR <= vaddr <= _WINDOW_END - count:
            return None
        return int.from_bytes(before.window[vaddr - WINDOW_VADDR :][:count], "big")

    expected = expect(effect, before.registers, read)
    return [
        *_in_registers(expected, before, after),
        *_in_memory(expected, before, after),
        *_in_flow(effect, expected, before, after, size),
    ]


def _in_registers(expected: Expected, before: State, after: State) -> list[str]:
    found = []
    for register, value in after.registers.items():
        if register not in expected.registers:
            if value != before.registers[register]:
                found.append(f"r{register} changes and is not named")
            continue
        wanted = expected.registers[register]
        if wanted is not None and wanted != value:
            found.append(f"r{register} is {value:x}, not {wanted:x}")
        if register in expected.short:
            size, low = expected.short[register]
            if value & ((1 << 8 * size) - 1) != low:
                found.append(f"the low {size} bytes of r{register} are not {low:x}: {value:x}")
        if register in expected.limits:
            size, limit = expected.limits[register]
            if value & ((1 << 8 * size) - 1) > limit:
                found.append(f"the low {size} bytes of r{register} are above {limit:x}: {value:x}")
    return found


def _in_memory(expected: Expected, before: State, after: State) -> list[str]:
    found = []
    announced = set()
    for vaddr, size, value in expected.stores:
        announced.update(range(vaddr, vaddr + size))
        if value is not None and WINDOW_VADDR <= vaddr <= _WINDOW_END - size:
            stored = int.from_bytes(after.window[vaddr - WINDOW_VADDR :][:size], "big")
            if stored != value:
                found.append(f"{stored:x} is stored, not {value:x}")
    changed = {WINDOW_VADDR + n for n in range(WINDOW_SIZE) if before.window[n] != after.window[n]}
    if changed - announced:
        found.append(f"bytes at {min(changed - announced):x} are stored to and not announced")
    return found


def _in_flow(effect: Effect, expected: Expected, before: State, after: State, size: int) -> list[str]:
    end = CODE_VADDR + size
    aim = expected.registers.get(JUMP_TARGET)
    ways = {
        Flow.NEXT: {end},
        Flow.JUMP: {effect.target},
        Flow.CALL: {effect.target},
        Flow.BRANCH: {effect.target, end},
        Flow.BRANCH_INDIRECT: {aim, end},
        Flow.STOP: set(),
    }.get(effect.flow, {aim})
    found = []
    if after.pc not in ways and not (None in ways and aim is None):
        found.append(f"control is at {after.pc:x}")
    if not expected.sets_flags:
        if after.cc != before.cc:
            found.append(f"the condition code changes from {before.cc} to {after.cc}")
    elif expected.comparison is not None and after.cc != {0: 0, -1: 1, 1: 2}[expected.comparison]:
        found.append(f"the condition code is {after.cc} after the comparison")
    return found
