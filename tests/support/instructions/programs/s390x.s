# SPDX-License-Identifier: Apache-2.0
# Functions of s390x, with CFI by hand; what is saved stays in its slot while there is a frame.
# `## NAME` begins a program; `## LABEL REASON` says why code from a label on has no row.

## registers saved and loaded together
    func f
    stmg %r11, %r15, 88(%r15)
    aghi %r15, -176
    .cfi_def_cfa_offset 336
    .cfi_offset 11, -72
    .cfi_offset 14, -48
    brasl %r14, g
    lmg %r11, %r15, 264(%r15)
    .cfi_def_cfa_offset 160
    .cfi_restore 11
    .cfi_restore 14
    br %r14
    endf
    func g
    ltgr %r2, %r2
    ber %r14
    lghi %r2, 1
    br %r14
    endf

## a tail call to a function that nothing else leads to
    func f
    stmg %r11, %r15, 88(%r15)
    aghi %r15, -160
    .cfi_def_cfa_offset 320
    .cfi_offset 11, -72
    .cfi_offset 14, -48
    lgr %r11, %r15
    brasl %r14, puts@plt
    lmg %r11, %r15, 248(%r15)
    .cfi_def_cfa_offset 160
    .cfi_restore 11
    .cfi_restore 14
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

## an instruction to execute, after a call that never returns
    func f
    exrl %r3, .Ltemplate
    ltgr %r2, %r2
    ber %r14
    stmg %r11, %r15, 88(%r15)
    aghi %r15, -160
    .cfi_def_cfa_offset 320
    .cfi_offset 11, -72
    .cfi_offset 14, -48
    brasl %r14, abort@plt
    endf
.Ltemplate:
    xc 0(1, %r1), 0(%r1)
    nopr %r7
    func g
    lghi %r2, 1
    br %r14
    endf

## a tail call to a function that pointers lead to, too
    func f
    stmg %r11, %r15, 88(%r15)
    aghi %r15, -160
    .cfi_def_cfa_offset 320
    .cfi_offset 11, -72
    .cfi_offset 14, -48
    lgr %r11, %r15
    larl %r2, .Lg; brasl %r14, atexit@plt
    lmg %r11, %r15, 248(%r15)
    .cfi_def_cfa_offset 160
    .cfi_restore 11
    .cfi_restore 14
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

## no entry, but a return, after what another instruction executes
    func f
    exrl %r2, .Lexecuted
    br %r14
    endf
.Lexecuted:
    xc 0(1,%r3), 0(%r3)
    .balign 8, 7
.Lnameless:
    .cfi_startproc
    lghi %r2, 1
    br %r14
    .cfi_endproc
