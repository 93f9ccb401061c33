# SPDX-License-Identifier: Apache-2.0
"""Instruction by instruction: the trace has the frames that gdb finds, or names what rows cannot express."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.trace import FileStore
from tests.support.emitted import need
from tests.support.targets import TARGETS
from tests.support.targets import need as need_program
from tests.support.trace.build import Program, compile_program
from tests.support.trace.emulated import emulated
from tests.support.trace.steps import Steps, write_steps

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.trace import Trace
    from tests.support.targets import Target
    from tests.support.trace.steps import Step

pytestmark = pytest.mark.oracle
only_on_amd64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="gdb steps a program of an AMD64 machine")

RBX = 3
LAZY = Program("stepped", "stepped.c")
NOW = Program("stepped-now", "stepped.c", ("-Wl,-z,now",))


class Account:
    """What was met on the way."""

    def __init__(self) -> None:
        self.steps = 0
        self.frames = 0
        self.pcs: set[int] = set()
        self.met: Counter[str] = Counter()
        self.depths: set[int] = set()

    def add(self, steps: Steps, step: Step) -> None:
        """Compare one step."""
        trace = steps.trace(step)
        found = places_of(trace)
        whole = list(step.frames)
        self.steps += 1
        self.frames += len(found)
        self.pcs.add(found[0][0])
        self.depths.add(len(whole))
        row = trace.entries[0].located.row
        assert row is not None
        self.met["stub"] += row.is_pcmask
        self.met["flexible"] += row.is_flexible
        self.met["handler"] += any(e.located.row is not None and e.located.row.is_signal_frame for e in trace.entries)
        if ends_at_resolver(trace):
            self.met["below resolver"] += 1
            assert len(found) < len(whole)
            whole = whole[: len(found)]
        else:
            assert trace.ending.kind == "outermost", (hex(found[0][0]), trace.ending, len(whole))
        assert hexadecimal(found) == hexadecimal(whole)


def places_of(trace: Trace) -> list[tuple[int, int]]:
    """Return PC and SP of each frame."""
    return [(entry.frame.pc, entry.frame.sp) for entry in trace.entries]


def ends_at_resolver(trace: Trace) -> bool:
    """Return whether a trace ends at the caller of ld.so's search for a symbol, which finds its own CFA from rbx.

    rbx is callee-saved: the search may have put it anywhere on the stack, and rows have such rules for FP and RA only.
    The frame is never the topmost one, whose rbx is known.
    """
    last = trace.entries[-1].located
    if trace.ending.kind != "unknown-register" or len(trace.entries) == 1:
        return False
    assert last.row is not None
    assert last.row.state is not None
    assert last.row.state.cfa is not None
    assert (last.row.state.cfa.register, last.row.is_flexible) == (RBX, True)
    return "ld-linux" in (last.module or "")


def hexadecimal(frames: list[tuple[int, int]]) -> list[str]:
    """Return PCs and SPs as text, for a message that can be read."""
    return [f"{pc:#x} {sp:#x}" for pc, sp in frames]


def account_of(program: Program, folder: Path, count: int) -> Account:
    """Step a program, and compare all steps."""
    need("gdb")
    binary = compile_program(program, folder)
    file = folder / "steps"
    write_steps(binary, file, count)
    return compare(binary, file)


def emulated_account_of(target: Target, folder: Path, count: int) -> Account:
    """Step a program of another architecture under its emulator, and compare all steps; signals are left out.

    Calls are bound before, libc's own too: AArch64's CFI of the resolver is wrong (known_wrong.py), and gdb, which has
    no CFI for PLT0 there, takes its caller up with an SP that is 16 bytes too low.
    """
    debugger = need_program("gdb-multiarch")
    binary = compile_program(NOW, folder, target.triplet)
    file = folder / "steps"
    with emulated(target, binary, folder, variable="LD_BIND_NOW=1") as emulator:
        write_steps(
            binary,
            file,
            count,
            settings=(f"set sysroot {target.sysroot}", "handle SIGUSR1 nopass"),
            start=(f"target remote {emulator.socket}", "break *stop_here", "continue"),
            debugger=debugger,
        )
    return compare(binary, file)


def compare(binary: Path, file: Path) -> Account:
    """Compare all steps of a file."""
    steps = Steps(binary, file, FileStore())
    account = Account()
    for step in steps:
        account.add(steps, step)
    print(  # noqa: T201 - for pytest -rP
        f"{account.steps} steps at {len(account.pcs)} PCs, {account.frames} frames, {dict(account.met)}, "
        f"{min(account.depths)} to {max(account.depths)} frames"
    )
    return account


@only_on_amd64
def test_lazy_binding(tmp_path: Path) -> None:
    """First calls: stubs, the resolver, and ld.so's search, whose callers no row leads to."""
    account = account_of(LAZY, tmp_path, 1200)
    assert account.steps == 1200
    assert account.met["stub"] >= 4
    assert account.met["below resolver"] > 500
    assert account.met["flexible"] > 20


@only_on_amd64
def test_steps(tmp_path: Path) -> None:
    """A realigned stack with its epilogue, a signal handler, and the start of snprintf."""
    account = account_of(NOW, tmp_path, 2000)
    assert account.steps == 2000
    assert len(account.pcs) > 1000
    assert account.met["stub"] >= 4
    assert account.met["handler"] >= 5
    assert account.met["flexible"] > 20
    assert account.met["below resolver"] == 0


@only_on_amd64
@pytest.mark.slow
def test_many_steps(tmp_path: Path) -> None:
    """More: formatting numbers, sorting with a callback, reading numbers, dates, memory management."""
    account = account_of(LAZY, tmp_path, 25_000)
    assert account.steps >= 20_000
    assert len(account.pcs) > 4000
    assert account.met["stub"] > 100
    assert account.met["handler"] >= 5
    assert 1000 < account.met["below resolver"] < account.steps / 3


@pytest.mark.parametrize("count", [600, pytest.param(6000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_emulated_steps(target: Target, count: int, tmp_path: Path) -> None:
    """AArch64 and s390x: RA is in its register until a prologue has saved it, and again after an epilogue."""
    account = emulated_account_of(target, tmp_path, count)
    assert account.steps == count
    assert len(account.pcs) > count / 3
    assert account.met["stub"] >= 4
    assert account.met["below resolver"] == 0
    assert max(account.depths) >= 8
