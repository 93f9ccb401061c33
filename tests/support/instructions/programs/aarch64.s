# SPDX-License-Identifier: Apache-2.0
# Functions of AArch64, with CFI by hand. `## NAME` begins a program.

## a frame, and pointer authentication
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

## the RA in a structure of the function, too
    func f
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    mov x29, sp
    str x30, [sp, #32]
    bl g
    ldp x29, x30, [sp], #48
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    ret
    endf
    func g
    ret
    endf

## SP of any size, by FP
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

## a table of bytes
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

## a mark of a function after a call of which it is not known that it never returns
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

## an address is loaded whose page begins in a function
    func f
    adrp x0, .Lpage
    add x0, x0, #0xf00
    ret
    endf
    .balign 4096
.Lpage:
    mov x0, #1
    b f

## an address is loaded that begins a page
    func f
    adrp x0, .Lpage
    add x0, x0, :lo12:.Lpage
    ret
    endf
    .balign 4096
.Lpage:
    .cfi_startproc
    mov x0, #1
    b f
    .cfi_endproc

## two tables of bytes, one after the other
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

## an address that counts from a label
    func f
    paciasp
    .cfi_negate_ra_state
    adr x5, .Lcases
    add x5, x5, x4, lsl #4
    br x5
    .balign 16
.Lcases:
    hint #36
    autiasp
    .cfi_negate_ra_state
    ret
    endf
