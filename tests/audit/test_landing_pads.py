# SPDX-License-Identifier: Apache-2.0
"""Code that only the unwinder leads to: landing pads are compared with their CFI, from the state at the call."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.audit.auditing import audit
from cfi2sframe.audit.records import Undecided
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.oracle

#: A function with a call whose exceptions are caught at the end. Of r14's slot, the CFI has the byte 0x2e.
SOURCE = """
        .globl f
        .type f, @function
f:      .cfi_startproc
        .cfi_personality 0x9b, personality
        .cfi_lsda 0x1b, area
        sub $376, %rsp
        .cfi_def_cfa_offset 384
        mov %r14, 16(%rsp)
        .cfi_offset 14, -368
        BEFORE
call:   call g@plt
called: AFTER
        add $376, %rsp
        .cfi_remember_state
        .cfi_def_cfa_offset 8
        ret
        .cfi_restore_state
pad:    mov %rax, %rdi
        call _Unwind_Resume@plt
        .cfi_endproc
        .size f, . - f

        .section .gcc_except_table,"a"
area:   .byte 0xff, 0xff, 1
        .uleb128 end - sites
sites:  .uleb128 call - f
        .uleb128 called - call
        .uleb128 pad - f
        .uleb128 0
end:    .skip 64
        .data
personality:
        .quad 0
"""
#: Arguments on the stack, which the CFI says besides the CFA.
PUSH = "sub $16, %rsp; .cfi_def_cfa_offset 400; .cfi_escape 0x2e, 16"
POP = "add $16, %rsp; .cfi_def_cfa_offset 384; .cfi_escape 0x2e, 0"


def not_reached(before: str, after: str, folder: Path) -> int:
    """Return how many instructions of the function no path leads to."""
    need("as", "ld")
    source = SOURCE.replace("BEFORE", before).replace("AFTER", after)
    subprocess.run(["as", "-o", folder / "f.o", "-"], input=source, text=True, check=True)
    subprocess.run(["ld", "-shared", "-o", folder / "f.so", folder / "f.o"], check=True)
    image = load(folder / "f.so")
    result = audit(image)
    assert not result.findings
    names = image.names_of({vaddr for vaddr, _, _ in result.undecided_functions})
    # The linker's stubs have CFI, too.
    left = [each for each in result.undecided_functions if names.get(each[0]) == "f"]
    return sum(count for _, reason, count in left if reason is Undecided.NOT_REACHED)


def test_a_landing_pad(tmp_path: Path) -> None:
    assert not_reached("", "", tmp_path) == 0


def test_a_call_with_arguments_on_the_stack(tmp_path: Path) -> None:
    """The unwinder pops them, and nothing else leads to the pad."""
    assert not_reached(PUSH, POP, tmp_path) == 2


def test_a_call_after_one_with_arguments(tmp_path: Path) -> None:
    assert not_reached(f"{PUSH}; call g@plt; {POP}", "", tmp_path) == 0
