# SPDX-License-Identifier: Apache-2.0
"""Stacks through code without CFI: they end there, unless rows are found in its instructions."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.trace import FileStore, trace_process
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is that of AMD64")

#: It pushes, calls, subtracts, and calls again; no directive says so.
ASSEMBLY = """
    .text
    .globl through
    .type through, @function
through:
    push %rbx
    mov %rdi, %rbx
    sub $48, %rsp
    call *%rbx
    add $48, %rsp
    pop %rbx
    ret
    .size through, .-through
    .section .note.GNU-stack,"",@progbits
"""
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
void through(void (*function)(void));
static void waiting(void) { char c; puts("ready"); fflush(stdout); if (read(0, &c, 1) < 0) _exit(1); }
int main(void) { through(waiting); return 0; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "through.s").write_text(ASSEMBLY)
    (folder / "main.c").write_text(PROGRAM)
    path = folder / "program"
    command = [need("gcc"), "-O1", "-o", str(path), str(folder / "main.c"), str(folder / "through.s")]
    subprocess.run(command, check=True, capture_output=True)
    return path


def names_of(program: Path, store: FileStore) -> tuple[list[str], str]:
    """Return the functions on the stack of a running program, the innermost first, and why the trace ends."""
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            traced = trace_process(process.pid, store=store)
        finally:
            process.kill()
    (thread,) = traced.threads
    found = [traced.space.symbol_at(entry.frame.lookup_pc) for entry in thread.entries]
    return [symbol.name if symbol else "" for symbol in found], thread.ending.kind


def test_only_with_rows_from_code_the_trace_goes_on(program: Path) -> None:
    names, ending = names_of(program, FileStore())
    assert ("waiting" in names, "main" in names, ending) == (True, False, "no-row")
    names, ending = names_of(program, FileStore(source="code"))
    assert names[names.index("waiting") :][:3] == ["waiting", "through", "main"]
    assert ending == "outermost"
