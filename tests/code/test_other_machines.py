# SPDX-License-Identifier: Apache-2.0
"""Functions of AArch64 and s390x, with CFI by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AARCH64_LE, S390X
from tests.support.code.assembled import assembled

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.arch import Arch

pytestmark = pytest.mark.oracle

#: A function whose frame is saved above SP, and is given up before the jump to another one.
S390X_TAIL_CALL: Final = """
        func f
        stmg %r11, %r15, 88(%r15)
        .cfi_offset 11, -72
        .cfi_offset 14, -48
        aghi %r15, -160
        .cfi_def_cfa_offset 320
        lgr %r11, %r15
        {call}
        lmg %r11, %r15, 248(%r15)
        .cfi_def_cfa_offset 160
        jg .Lg
        endf
        .balign 16
        .Lg:
        .cfi_startproc
        ltgr %r2, %r3
        ber %r14
        lghi %r2, 1
        br %r14
        .cfi_endproc
        """
#: In s390x's rows, what is saved stays in its slot when the register has been loaded again.
PROGRAMS: Final[dict[str, tuple[Arch, str]]] = {
    "AArch64: a frame, and pointer authentication": (
        AARCH64_LE,
        """
        func f
        paciasp
        .cfi_negate_ra_state
        stp x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset 29, -48
        .cfi_offset 30, -40
        mov x29, sp
        bl g
        ldp x29, x30, [sp], #48
        .cfi_def_cfa_offset 0
        .cfi_restore 29
        .cfi_restore 30
        autiasp
        .cfi_negate_ra_state
        ret
        endf
        func g
        sub sp, sp, #0x2000
        .cfi_def_cfa_offset 0x2000
        add sp, sp, #0x2000
        .cfi_def_cfa_offset 0
        ret
        endf
        """,
    ),
    "AArch64: SP of any size, by FP": (
        AARCH64_LE,
        """
        func f
        stp x29, x30, [sp, #-16]!
        .cfi_def_cfa_offset 16
        .cfi_offset 29, -16
        .cfi_offset 30, -8
        mov x29, sp
        sub sp, sp, x0
        .cfi_def_cfa 29, 16
        mov sp, x29
        .cfi_def_cfa 31, 16
        ldp x29, x30, [sp], #16
        .cfi_def_cfa_offset 0
        .cfi_restore 29
        .cfi_restore 30
        ret
        endf
        """,
    ),
    "AArch64: a table of bytes": (
        AARCH64_LE,
        """
        func f
        sub sp, sp, #16
        .cfi_def_cfa_offset 16
        cmp w0, #1
        b.hi .Lfirst
        adr x1, .Ltable
        ldrb w0, [x1, w0, uxtw]
        adr x2, .Lfirst
        add x0, x2, w0, sxtb #2
        br x0
        .Lfirst:
        add sp, sp, #16
        .cfi_def_cfa_offset 0
        ret
        .Lsecond:
        .cfi_def_cfa_offset 16
        mov w0, #1
        b .Lfirst
        endf
        .section .rodata
        .Ltable: .byte 0, (.Lsecond - .Lfirst) / 4
        """,
    ),
    "AArch64: a mark of a function after a call of which it is not known that it never returns": (
        AARCH64_LE,
        """
        func f
        cbz x0, .Lfail
        ret
        .Lfail:
        stp x29, x30, [sp, #-16]!
        .cfi_def_cfa_offset 16
        .cfi_offset 29, -16
        .cfi_offset 30, -8
        bl jumps
        endf
        paciasp
        sub sp, sp, #16
        bl abort
        func jumps
        ldr x1, [x0]
        br x1
        endf
        """,
    ),
    "AArch64: an address is loaded whose page begins in a function": (
        AARCH64_LE,
        """
        func f
        adrp x0, .Lpage
        add x0, x0, #0xf00
        ret
        endf
        .balign 4096
        .Lpage:
        mov x0, #1
        ret
        """,
    ),
    "AArch64: an address is loaded that begins a page": (
        AARCH64_LE,
        """
        func f
        adrp x0, .Lpage
        add x0, x0, :lo12:.Lpage
        ret
        endf
        .balign 4096
        .Lpage:
        .cfi_startproc
        mov x0, #1
        ret
        .cfi_endproc
        """,
    ),
    "AArch64: a table of halfwords without a limit, and a text after it": (
        AARCH64_LE,
        """
        func f
        adrp x9, .Ltable
        add x9, x9, :lo12:.Ltable
        adr x10, .Lzero
        ldrh w11, [x9, x0, lsl #1]
        add x10, x10, x11, lsl #2
        br x10
        .Lzero: mov w0, #1
        ret
        .Lone: mov w0, #2
        ret
        endf
        func g
        mov w0, #3
        ret
        endf
        .Lnothing: mov w0, #4
        ret
        .section .rodata
        .balign 2
        .Ltable: .hword 0, (.Lone - .Lzero) / 4
        .hword (.Lnothing - .Lzero) / 4
        .text
        """,
    ),
    "AArch64: two tables of bytes, one after the other": (
        AARCH64_LE,
        """
        func f
        adrp x9, .Lfirst
        add x9, x9, :lo12:.Lfirst
        adr x10, .Lzero
        ldrb w11, [x9, x0]
        add x10, x10, x11, lsl #2
        br x10
        .Lzero: mov w0, #1
        ret
        .Lone: adrp x9, .Lsecond
        add x9, x9, :lo12:.Lsecond
        adr x10, .Ltwo
        ldrb w11, [x9, x0]
        add x10, x10, x11, lsl #2
        br x10
        .Ltwo: sub sp, sp, #16
        .cfi_def_cfa_offset 16
        mov w0, #2
        add sp, sp, #16
        .cfi_def_cfa_offset 0
        ret
        .Lthree: mov w0, #3
        mov w1, #3
        mov w2, #3
        mov w3, #3
        ret
        .Lfour: ret
        endf
        .section .rodata
        .Lfirst: .byte 0, (.Lone - .Lzero) / 4
        .Lsecond: .byte 0, (.Lthree - .Ltwo) / 4, (.Lfour - .Ltwo) / 4
        .text
        """,
    ),
    "AArch64: a mark where only jumps may arrive, in what an address leads to": (
        AARCH64_LE,
        """
        func f
        paciasp
        .cfi_negate_ra_state
        adr x5, .Lcases
        add x5, x5, x4, lsl #4
        br x5
        endf
        .balign 16
        .Lcases:
        hint #36
        autiasp
        ret
        """,
    ),
    "s390x: registers saved and loaded together": (
        S390X,
        """
        func f
        stmg %r11, %r15, 88(%r15)
        .cfi_offset 11, -72
        .cfi_offset 14, -48
        aghi %r15, -176
        .cfi_def_cfa_offset 336
        brasl %r14, g
        lmg %r11, %r15, 264(%r15)
        .cfi_def_cfa_offset 160
        br %r14
        endf
        func g
        ltgr %r2, %r2
        ber %r14
        lghi %r2, 1
        br %r14
        endf
        """,
    ),
    "s390x: a tail call to a function that nothing else leads to": (
        S390X,
        S390X_TAIL_CALL.format(call="brasl %r14, puts@plt"),
    ),
    "s390x: an instruction to execute, after a call that never returns": (
        S390X,
        """
        func f
        exrl %r3, .Ltemplate
        ltgr %r2, %r2
        ber %r14
        stmg %r11, %r15, 88(%r15)
        .cfi_offset 11, -72
        .cfi_offset 14, -48
        aghi %r15, -160
        .cfi_def_cfa_offset 320
        brasl %r14, abort@plt
        endf
        .Ltemplate:
        xc 0(1, %r1), 0(%r1)
        nopr %r7
        func g
        lghi %r2, 1
        br %r14
        endf
        """,
    ),
    "s390x: a tail call to a function that pointers lead to, too": (
        S390X,
        S390X_TAIL_CALL.format(call="larl %r2, .Lg; brasl %r14, atexit@plt"),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows(name: str, tmp_path: Path) -> None:
    arch, source = PROGRAMS[name]
    # Numbers below a page are no addresses for the analysis.
    assert assembled(arch, source, tmp_path, options=("-Ttext-segment=0x10000",)).problems() == []
