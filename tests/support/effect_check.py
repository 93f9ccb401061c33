# SPDX-License-Identifier: Apache-2.0
"""What an effect says of an instruction, against what its execution has done: AArch64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.instructions.effects import BETWEEN, JUMP, RA_SIGN_STATE, Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.instructions.effects import Effect
    from tests.support.aarch64_execution import Executed
    from tests.support.instructions.concrete import Expected

_LINK: Final = 30


def contradictions(
    effect: Effect,
    pc: int,
    before: dict[int, int],
    expected: Expected,
    after: Executed,
    read: Callable[[int, int], int],
    *,
    is_plain: bool,
    is_exact: bool,
) -> list[str]:
    """Return how an effect differs from an execution.

    `is_plain`: all that was written has an address that is told. `is_exact`: all that is told was written.
    """
    found = []
    for register, value in after.registers.items():
        if register in expected.registers:
            wanted = expected.registers[register]
            if wanted is not None and wanted != value:
                found.append(f"register {register} is 0x{value:x}, not 0x{wanted:x}")
        elif register == _LINK and effect.flow is Flow.CALL:
            if value != pc + 4:
                found.append("the return address is another one")
        elif value != before[register]:
            found.append(f"register {register} has changed to 0x{value:x}")
    unknown = set(expected.registers) - set(after.registers) - {JUMP, BETWEEN, RA_SIGN_STATE}
    found += [f"register {register} is none" for register in unknown if register < JUMP]
    found += _wrong_stores(expected, after, read, is_plain=is_plain, is_exact=is_exact)
    found += _wrong_flow(effect, pc, expected, after)
    return found


def _wrong_stores(
    expected: Expected, after: Executed, read: Callable[[int, int], int], *, is_plain: bool, is_exact: bool
) -> list[str]:
    written = {vaddr + n for vaddr, size in after.writes for n in range(size)}
    told = {store.vaddr + n for store in expected.stores for n in range(store.size)}
    found = []
    if is_plain and not written <= told:
        found.append(f"0x{min(written - told):x} was written")
    if is_exact and not told <= written:
        found.append(f"0x{min(told - written):x} was not written")
    for store in expected.stores:
        if store.value is None or not written:
            continue
        if read(store.vaddr, store.size) != store.value:
            found.append(f"0x{store.vaddr:x} has another value")
    return found


def _wrong_flow(effect: Effect, pc: int, expected: Expected, after: Executed) -> list[str]:
    flow, target = effect.flow, effect.target
    places: set[int | None] = {pc + 4}
    if flow in (Flow.JUMP, Flow.CALL) and target is not None:
        places = {target}
    elif flow is Flow.BRANCH:
        places = {target, pc + 4}
    elif flow in (Flow.JUMP_INDIRECT, Flow.RETURN, Flow.CALL):
        wanted = expected.registers.get(JUMP)
        places = {after.pc if wanted is None else wanted}
    elif flow is Flow.STOP:
        return ["it does not stop"]
    return [] if after.pc in places else [f"control goes to 0x{after.pc:x}"]
