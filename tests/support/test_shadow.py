# SPDX-License-Identifier: Apache-2.0
"""The tracer that knows frames from execution: right rows pass it, and each wrong row that runs is found."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.model import Rule
from tests.support.shadow_run import (
    LEAST_SIZE,
    SUPPORT,
    FunctionNames,
    RefusedError,
    Report,
    build_tracer,
    step,
    subject_of,
    without_cfi,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.sframe.model import FrameState

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the tracer steps programs of an AMD64 machine"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

CFA_ON_STACK: Final = 8
MUTANT_COUNT: Final = 24


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tracer(tmp_path_factory.mktemp("shadow"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signals (nested, and on a stack of their own), recursion, alloca, a realigned stack, a longjmp."""
    target = tmp_path_factory.mktemp("stepped") / "steps"
    subprocess.run(["cc", "-O2", "-o", target, SUPPORT / "consumer" / "steps.c"], check=True)
    return target


def compiled(folder: Path, name: str, text: str, *options: str) -> Path:
    """Compile a program."""
    source = folder / f"{name}.c"
    source.write_text(text)
    subprocess.run(["cc", *options, "-o", folder / name, source], check=True)
    return folder / name


def differing_functions(report: Report, program: Path) -> set[str]:
    """Return the functions with rows that do not say what execution shows."""
    names = FunctionNames(load(str(program)))
    return {names.of(place.vaddr) for place in report.places if place.differing}


@pytest.mark.parametrize("limits", [("-a",), ()], ids=["all", "pages"])
def test_rows_of_cfi_are_what_execution_shows(tracer: Path, program: Path, tmp_path: Path, limits: tuple[str]) -> None:
    """Of some compilers the epilogue of a function that realigns the stack has wrong CFI (consumer/README.md)."""
    report = step(tracer, tmp_path, [subject_of(program, Options(), covered=True)], [program], limits=limits)
    sums = report.sums
    assert report.status == 0
    assert sums["equal"] > 450
    assert sums["without_row"] == 0
    assert sums["equal"] + sums["differing"] + sums["unknown"] == sums["steps"]
    # _start has no caller; where only pages are watched, what longjmp() comes back to is not known.
    assert sums["unknown"] <= 40
    assert sums["differing"] <= 4
    assert differing_functions(report, program) <= {"fill"}
    assert sums["right_calls"] > 20
    assert sums["unsafe_calls"] == 0


def test_all_ends_of_frames_are_followed(tracer: Path, program: Path, tmp_path: Path) -> None:
    sums = step(tracer, tmp_path, [subject_of(program, Options(), covered=True)], [program], limits=("-a",)).sums
    assert sums["signals"] == 4
    assert sums["abandoned"] >= 1
    assert sums["other_returns"] == 0
    # What does not return: exit(), what it calls last, and what longjmp() and handlers leave.
    assert sums["calls"] + 2 * sums["signals"] - sums["returns"] <= 12


def test_enough_calls_are_stepped(tracer: Path, program: Path, tmp_path: Path) -> None:
    """Calls beyond the limit run to their return, and what follows is compared as before."""
    subject = subject_of(program, Options(), covered=True)
    whole = step(tracer, tmp_path, [subject], [program])
    report = step(tracer, tmp_path, [subject], [program], limits=("-c", "2"))
    assert report.sums["let_run"] > 3
    assert 0 < report.sums["steps"] < whole.sums["steps"]
    assert differing_functions(report, program) <= {"fill"}
    windows = step(tracer, tmp_path, [subject], [program], limits=("-c", "0", "-w", "100"))
    assert (windows.status, windows.sums["let_run"]) == (0, 0)
    assert windows.sums["windows"] > 0
    assert differing_functions(windows, program) <= {"fill"}
    cut = step(tracer, tmp_path, [subject], [program], limits=("-s", "100"))
    assert (cut.status, cut.sums["steps"]) == (0, 100)


def test_start_code_beside_a_plt_is_stepped_only_with_all_else(program: Path) -> None:
    """Each call of a library's function would stop a program whose pages are watched, at its stub."""
    assert subject_of(program, Options(), least_size=1).ranges.pairs
    assert without_cfi(load(str(program)), LEAST_SIZE).pairs
    assert not subject_of(program, Options()).ranges.pairs


def test_every_wrong_row_is_found(tracer: Path, program: Path, tmp_path: Path) -> None:
    """A CFA that is 8 bytes off, or a rule for FP where there is another, at places that run."""
    subject = subject_of(program, Options(), covered=True)
    report = step(tracer, tmp_path, [subject], [program], limits=("-a",))
    visited = {p.vaddr for p in report.places if p.steps > p.unknown and not p.differing}
    conversion = convert(load(str(program)))
    rows = [
        (number, index)
        for number, function in enumerate(conversion.section.functions)
        if not function.body.repeat_size
        for index, row in enumerate(function.body.rows)
        if any(vaddr in visited for vaddr in _reach(conversion, number, index, row.start_delta))
    ]
    assert len(rows) > MUTANT_COUNT
    for number, index in rows[:: len(rows) // MUTANT_COUNT]:
        for change in (_moved_cfa, _other_fp):
            wrong = subject._replace(section=_changed(conversion, number, index, change))
            found = step(tracer, tmp_path, [wrong], [program], limits=("-a",))
            assert found.sums["differing"] > report.sums["differing"], (conversion.section.functions[number], index)


def _reach(conversion: Conversion, number: int, index: int, start_delta: int) -> range:
    function = conversion.section.functions[number]
    ends = (*function.body.starts, function.size)[index + 1]
    return range(function.start_vaddr + start_delta, function.start_vaddr + ends)


def _moved_cfa(state: FrameState) -> FrameState:
    assert state.cfa is not None
    return state._replace(cfa=state.cfa._replace(offset=state.cfa.offset + CFA_ON_STACK))


def _other_fp(state: FrameState) -> FrameState:
    return state._replace(fp=Rule(None, -CFA_ON_STACK, deref=True))


def _changed(conversion: Conversion, number: int, index: int, change: Callable[[FrameState], FrameState]) -> bytes:
    """Return the section with one row changed."""
    section = conversion.section
    body = section.bodies[number]
    states = (*body.states[:index], change(body.states[index]), *body.states[index + 1 :])
    bodies = (*section.bodies[:number], body._replace(states=states), *section.bodies[number + 1 :])
    changed = section._replace(bodies=bodies)
    return encode_section(plan_section(changed, conversion.image.arch, conversion.section_vaddr, share=True))


THREADS: Final = """
#include <pthread.h>
static int twice(int n) { return n < 2 ? n : twice(n - 1) + twice(n - 2); }
static void *work(void *data) { *(int *)data = twice(7); return data; }
int main(void)
{
  pthread_t threads[3];
  int sums[3], i;
  for (i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, &sums[i]);
  for (i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  return sums[0] + sums[1] + sums[2] != 39;
}
"""
PROCESSES: Final = """
#include <sys/wait.h>
#include <unistd.h>
int main(void) { if (fork() == 0) _exit(0); return wait(NULL) < 0; }
"""


def test_threads(tracer: Path, tmp_path: Path) -> None:
    """Each thread has its stack; they are refused where only pages are watched."""
    program = compiled(tmp_path, "threads", THREADS, "-O1", "-pthread")
    subject = subject_of(program, Options(), covered=True)
    report = step(tracer, tmp_path, [subject], [program], limits=("-a",))
    assert (report.status, report.sums["differing"], report.sums["without_row"]) == (0, 0, 0)
    assert report.sums["equal"] > 3 * 100
    with pytest.raises(RefusedError, match="starts a thread"):
        step(tracer, tmp_path, [subject], [program])


def test_processes_are_refused(tracer: Path, tmp_path: Path) -> None:
    program = compiled(tmp_path, "processes", PROCESSES)
    for limits in ((), ("-a",)):
        with pytest.raises(RefusedError, match="starts a process"):
            step(tracer, tmp_path, [subject_of(program, Options(), covered=True)], [program], limits=limits)
