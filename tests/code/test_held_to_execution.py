# SPDX-License-Identifier: Apache-2.0
"""Rows of code without CFI are what single steps show, with a tracer that has no part in the analysis.

`make step` does the same for codecs, OpenBLAS and musl.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, load
from tests.support.shadow_run import SUPPORT, FunctionNames, Report, build_tracer, step, subject_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the tracer steps programs of an AMD64 machine"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

WITHOUT_CFI: Final = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fcf-protection=none")
#: Functions as they are written by hand: what each does to the stack, it does to be described.
ASSEMBLY: Final = """
  .text
  .macro function name
  .globl \\name
  .type \\name, @function
\\name:
  .endm

function pushes             # callee-saved registers, then room
  push %rbx
  push %rbp
  push %r12
  sub $40, %rsp
  mov %rdi, (%rsp)
  mov %rdi, %rbp
  call twice
  mov (%rsp), %rbx
  add %rbx, %rax
  add $40, %rsp
  pop %r12
  pop %rbp
  pop %rbx
  ret

function twice              # no frame
  lea (%rdi,%rdi), %rax
  ret

function framed             # FP leads to the CFA over an aligned SP
  push %rbp
  mov %rsp, %rbp
  push %rbx
  and $-64, %rsp
  sub $128, %rsp
  mov %rdi, %rbx
  call twice
  lea -8(%rbp), %rsp
  pop %rbx
  pop %rbp
  ret

function kept               # the CFA in the aligned frame, FP used for something else
  push %rbp
  lea 16(%rsp), %rax
  sub $64, %rsp
  and $-32, %rsp
  mov %rax, 32(%rsp)
  mov $3, %ebp
  call twice
  mov 32(%rsp), %rax
  lea -16(%rax), %rsp
  pop %rbp
  ret

function in_register        # the old SP in a register that calls keep
  push %rbx
  mov %rsp, %rbx
  and $-32, %rsp
  sub $32, %rsp
  call twice
  mov %rbx, %rsp
  pop %rbx
  ret

function early              # two exits, at one depth each
  test %rdi, %rdi
  jz 1f
  sub $24, %rsp
  call twice
  add $24, %rsp
  ret
1:push %rbx
  xor %eax, %eax
  pop %rbx
  ret

function chooses            # a table of jumps with a bounds check, inside a frame
  push %rbp
  sub $16, %rsp
  xor %eax, %eax
  cmp $3, %rdi
  ja 9f
  lea table(%rip), %rdx
  movslq (%rdx,%rdi,4), %rcx
  add %rdx, %rcx
  jmp *%rcx
5:inc %eax
6:inc %eax
7:inc %eax
9:add $16, %rsp
  pop %rbp
  ret

function passes_on          # a tail call behind a frame
  push %rbx
  mov %rdi, %rbx
  call twice
  mov %rax, %rdi
  pop %rbx
  jmp early

function loops              # a loop that pushes as much as it pops
  mov $5, %ecx
1:push %rdi
  push %rcx
  call twice
  pop %rcx
  pop %rdi
  dec %ecx
  jnz 1b
  ret

function entered
  enter $48, $0
  mov %rdi, -8(%rbp)
  call twice
  leave
  ret

  .section .rodata
  .align 4
table: .long 5b - table, 6b - table, 7b - table, 9b - table
  .section .note.GNU-stack, "", @progbits
"""
FUNCTIONS: Final = re.findall(r"^function (\w+)", ASSEMBLY, re.MULTILINE)
CALLS: Final = """
typedef long function(long);
extern function pushes, twice, framed, kept, in_register, early, chooses, passes_on, loops, entered;
int main(void)
{
  static function *const all[] = {pushes, twice, framed, kept, in_register, early, chooses, passes_on, loops, entered};
  long sum = 0;
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
    for (long n = 0; n < 5; n++) sum += all[i](n);
  return sum == 0;
}
"""


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tracer(tmp_path_factory.mktemp("shadow"))


def stepped(tracer: Path, program: Path) -> Report:
    """Step every instruction of a program; what differs is the failure's message."""
    subject = subject_of(program, Options(source="code"), least_size=1)
    report = step(tracer, program.parent, [subject], [program], limits=("-a",))
    assert report.status == 0
    assert not report.examples, "\n".join(map(repr, report.examples))
    return report


def test_assembly(tracer: Path, tmp_path: Path) -> None:
    """Every instruction has a row, and it is right."""
    assembly, calls, program = tmp_path / "functions.s", tmp_path / "calls.c", tmp_path / "program"
    assembly.write_text(ASSEMBLY)
    calls.write_text(CALLS)
    subprocess.run(["cc", "-O1", "-o", program, assembly, calls], check=True)
    report = stepped(tracer, program)
    names = FunctionNames(load(str(program)))
    met: Counter[str] = Counter()
    without_row = set()
    for place in report.places:
        name = names.of(place.vaddr)
        met[name] += 1
        if place.without_row:
            without_row.add(name)
    assert len(FUNCTIONS) == 10
    assert {name for name in FUNCTIONS if met[name] >= 2} == set(FUNCTIONS)
    assert not without_row & set(FUNCTIONS)
    assert report.sums["right_calls"] > 40
    # Of in_register: no slot has what leads to its CFA.
    assert report.sums["unsafe_calls"] == 5


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os", "-O2 -fno-omit-frame-pointer"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiled(tracer: Path, tmp_path: Path, compiler: str, level: str) -> None:
    """Signals, recursion, alloca, a realigned stack, a longjmp."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    program = tmp_path / "steps"
    words: list[str | Path] = [compiler, *level.split(), *WITHOUT_CFI, "-o", program, SUPPORT / "consumer" / "steps.c"]
    subprocess.run(words, check=True)
    sums = stepped(tracer, program).sums
    assert sums["equal"] > 0.9 * (sums["steps"] - sums["unknown"])
    assert sums["equal"] > 300
