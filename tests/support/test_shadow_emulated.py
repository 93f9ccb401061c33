# SPDX-License-Identifier: Apache-2.0
"""Frames from execution under qemu: rows of CFI pass, and a wrong row is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, load
from tests.support.remote_gdb import RemoteGdb
from tests.support.shadow_emulated import EmulatedShadow, entries_of
from tests.support.shadow_run import FunctionNames, Subject, subject_of
from tests.support.targets import TARGETS, label, run
from tests.support.trace.emulated import emulated

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.sframe.model import Rule
    from tests.support.targets import Target

pytestmark = pytest.mark.oracle

PROGRAM: Final = """
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
static int compare(const void *left, const void *right) { return *(const int *)left - *(const int *)right; }
__attribute__((noinline)) int fill(int size) { volatile char *room = alloca(size); room[size - 1] = 3; return *room; }
__attribute__((noinline)) int deep(int n) { return n == 0 ? fill(40) : deep(n - 1) + n; }
int main(void)
{
  int values[] = {5, 3, 9, 1}, sum;
  double half = 0.5;
  qsort(values, 4, sizeof *values, compare);
  sum = deep(4) + values[2];
  return printf("%d %.2f %s\\n", sum, half, "text") < 0;
}
"""
CALLS: Final = 2
MOST_STEPS: Final = 20_000
#: They are entered by no call: the program's start, in which glibc's static start code lies, too.
NO_CALLER: Final = {"_start", "__wrap_main"}


def stepped(target: Target, program: Path, subject: Subject) -> EmulatedShadow:
    """Step some calls of each function."""
    image = load(str(program))
    with emulated(target, program, program.parent) as emulator:
        gdb = RemoteGdb(emulator.socket, target.name)
        shadow = EmulatedShadow(gdb, image, subject)
        shadow.run(entries_of(image), CALLS, MOST_STEPS)
        gdb.close()
    return shadow


@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_rows_of_cfi(target: Target, tmp_path: Path) -> None:
    """All rows that run are right; where one rule for FP is replaced, that is found."""
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    run([target.compiler, "-O2", "-static", "-o", program, tmp_path / "program.c"])
    subject = subject_of(program, Options(), covered=True)
    shadow = stepped(target, program, subject)
    names = FunctionNames(load(str(program)))
    assert shadow.ending == 0
    assert shadow.sums["equal"] > 4000
    assert shadow.sums["without_row"] == 0
    assert {names.of(vaddr) for vaddr in shadow.differences} <= NO_CALLER
    assert {"main", "deep", "fill", "compare"} <= {names.of(vaddr) for vaddr in shadow.places}


@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_a_wrong_row_is_found(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules whose offsets are 8 bytes off."""
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    run([target.compiler, "-O2", "-static", "-o", program, tmp_path / "program.c"])
    subject = subject_of(program, Options(), covered=True)
    image = load(str(program))
    names = FunctionNames(image)
    wanted = {vaddr for vaddr in entries_of(image) if names.of(vaddr) == "deep"}
    value_of = EmulatedShadow._value

    def moved(self: EmulatedShadow, rule: Rule, *rest: object) -> int | None:
        return value_of(self, rule._replace(offset=rule.offset + 8), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(EmulatedShadow, "_value", moved)
    with emulated(target, program, tmp_path) as emulator:
        gdb = RemoteGdb(emulator.socket, target.name)
        shadow = EmulatedShadow(gdb, image, subject)
        shadow.run(wanted, CALLS, MOST_STEPS)
        gdb.close()
    assert shadow.sums["equal"] == 0
    assert shadow.sums["differing"] > 10
