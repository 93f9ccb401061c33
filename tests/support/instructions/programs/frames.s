# SPDX-License-Identifier: Apache-2.0
# Stack frames of AMD64 as compilers and people write them, with CFI by hand.
# `## NAME` begins a program; `## LABEL REASON` says why code from a label on has no row.

## push and pop
    func f
    push rbx
    .cfi_def_cfa_offset 16
    push r12
    .cfi_def_cfa_offset 24
    add rsp, -8
    .cfi_def_cfa_offset 32
    sub rsp, 0x100
    .cfi_def_cfa_offset 0x120
    lea rsp, [rsp+0x108]
    .cfi_def_cfa_offset 24
    pop r12
    .cfi_def_cfa_offset 16
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf

## a frame by FP, and leave
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    sub rsp, 32
    .cfi_def_cfa_offset 48
    leave
    .cfi_def_cfa_offset 8
    .cfi_restore rbp
    ret
    endf

## alloca by FP
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    push rbx
    .cfi_def_cfa_offset 24
    sub rsp, rdi
    .cfi_def_cfa rbp, 16
    mov rdi, rsp
    call g
    mov rbx, [rbp-8]
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    endf
    func g
    ret
    endf

## realigned, by r10
    func f
    lea r10, [rsp+8]
    and rsp, -32
    .cfi_def_cfa r10, 0
    push qword ptr [r10-8]
    push rbp
    mov rbp, rsp
    # at rsp + 0, from where the register has another value
    .cfi_escape 0x10, 6, 2, 0x77, 0
    push r10
    # FP at rsp + 8; the CFA is the word at rsp + 0
    .cfi_escape 0x10, 6, 2, 0x77, 8
    .cfi_escape 0x0f, 3, 0x77, 0, 0x06
    sub rsp, 40
    .cfi_escape 0x10, 6, 2, 0x77, 48
    .cfi_escape 0x0f, 3, 0x77, 40, 0x06
    mov r10, [rbp-8]
    leave
    .cfi_def_cfa r10, 0
    .cfi_restore rbp
    lea rsp, [r10-8]
    .cfi_def_cfa rsp, 8
    ret
    endf

## realigned, by a register that calls keep
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov rbx, rsp
    and rsp, -64
    .cfi_def_cfa rbx, 16
    sub rsp, 128
    call g
    mov rsp, rbx
    .cfi_def_cfa rsp, 16
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf
    func g
    xor eax, eax
    ret
    endf

## realigned, by a copy of the CFA in the frame
    func f
    lea rax, [rsp+8]
    sub rsp, 64
    .cfi_def_cfa_offset 72
    and rsp, -64
    .cfi_def_cfa rax, 0
    mov [rsp+32], rax
    # the word at rsp + 32: calls change rax
    .cfi_escape 0x0f, 3, 0x77, 32, 0x06
    call g
    xor eax, eax
    mov rcx, [rsp+32]
    lea rsp, [rcx-8]
    .cfi_def_cfa rsp, 8
    ret
    endf
    func g
    mov eax, 1
    ret
    endf

## a probe in a loop, as GCC makes it
    func f
    lea r11, [rsp-0x8000]
.Lprobe:
    .cfi_def_cfa r11, 0x8008
    sub rsp, 0x1000
    or qword ptr [rsp], 0
    cmp rsp, r11
    jne .Lprobe
    .cfi_def_cfa rsp, 0x8008
    sub rsp, 8
    .cfi_def_cfa_offset 0x8010
    add rsp, 0x8008
    .cfi_def_cfa_offset 8
    ret
    endf

## a probe in a loop, as clang makes it
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    mov r11, rsp
    sub r11, 0x8000
.Lprobe:
    .cfi_def_cfa rbp, 16
    sub rsp, 0x1000
    mov qword ptr [rsp], 0
    cmp rsp, r11
    jne .Lprobe
    .cfi_def_cfa rsp, 0x8010
    leave
    .cfi_def_cfa rsp, 8
    .cfi_restore rbp
    ret
    endf

## the red zone
    func f
    mov [rsp-8], rbp
    xor ebp, ebp
    .cfi_offset rbp, -16
    mov rbp, [rsp-8]
    .cfi_restore rbp
    ret
    endf

## FP in another register
    func f
    mov r11, rbp
    xor ebp, ebp
    .cfi_register rbp, r11
    mov rbp, r11
    .cfi_restore rbp
    ret
    endf

## the RA in a register
    func f
    pop rdx
    .cfi_def_cfa_offset 0
    .cfi_register rip, rdx
    sub rsp, 16
    .cfi_def_cfa_offset 16
    mov [rsp+8], rdi
    add rsp, 16
    .cfi_def_cfa_offset 0
    push rdx
    .cfi_def_cfa_offset 8
    .cfi_offset rip, -8
    ret
    endf

## arguments pushed for a call
    func f
    push 1
    .cfi_def_cfa_offset 16
    push qword ptr [rdi]
    .cfi_def_cfa_offset 24
    pushfq
    .cfi_def_cfa_offset 32
    popfq
    .cfi_def_cfa_offset 24
    call g
    pop qword ptr [rdi]
    .cfi_def_cfa_offset 16
    pop rcx
    .cfi_def_cfa_offset 8
    ret
    endf
    func g
    ret
    endf

## a large frame by a number in a register
    func f
    mov eax, 0x12340
    sub rsp, 0x12340
    .cfi_def_cfa_offset 0x12348
    mov eax, 0x12340
    add rsp, rax
    .cfi_def_cfa_offset 8
    ret
    endf

## SP of an unknown value
    func f
    test edi, edi
    je .Lend
    mov rsp, rsi
    endf
.Lunknown:
    mov eax, 1
    ud2
    func f2
.Lend:
    ret
    endf

## another stack, and FP says where the CFA is
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    push rbx
    .cfi_def_cfa_offset 24
    mov rsp, [rdi]
    .cfi_def_cfa rbp, 16
    push rax
    call rsi
    lea rsp, [rbp-8]
    .cfi_def_cfa rsp, 24
    pop rbx
    .cfi_def_cfa_offset 16
    pop rbp
    .cfi_def_cfa_offset 8
    .cfi_restore rbp
    ret
    endf

## the RA is overwritten
    func f
    test edi, edi
    je .Lend
    mov [rsp], rdi
    endf
.Lunknown:
    mov eax, 1
    jmp .Lunknown
    func f2
.Lend:
    ret
    endf

## two depths at one place
    func f
    push rbx
    .cfi_def_cfa_offset 16
    test edi, edi
    je .Lmixed
    pop rbx
    .cfi_def_cfa_offset 8
    je .Lend
    push rbx
    .cfi_def_cfa_offset 16
    push rbx
    .cfi_def_cfa_offset 24
    endf
.Lmixed:
    mov eax, 1
    jmp .Lmixed
    func f2
.Lend:
    ret
    endf

## a return with something left on the stack
    func e
    ret
    endf
    .type f, @function
f:
    mov [rsp-8], rbx
    lea rsp, [rsp-8]
    ret

## a return that takes arguments off
    func e
    ret
    endf
    .type f, @function
f:
    ret 16

## an instruction that may do anything
    func f
    push rbx
    .cfi_def_cfa_offset 16
    iretq
    endf
.Lafter:
    .cfi_startproc
    mov eax, 1
    ret
    .cfi_endproc

