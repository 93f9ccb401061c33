# SPDX-License-Identifier: Apache-2.0
# Calls and jumps between functions of AMD64, with CFI by hand.
# `## NAME` begins a program; `## LABEL REASON` says why code from a label on has no row.

## an import that never returns
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call abort@plt
    endf
.Lafter:
    pop rax
    ret

## imports of other languages that never return
    func f
    call Perl_croak@plt
    endf
.Lperl:
    push rax
    ret
    func g
    call __gnat_rcheck_CE_Range_Check@plt
    endf
.Lada:
    push rax
    ret

## an import that returns
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call puts@plt
    pop rax
    .cfi_def_cfa_offset 8
    ret
    endf

## an import by its slot
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call qword ptr [rip+puts@gotpcrel]
    call qword ptr [rip+exit@gotpcrel]
    endf
.Lafter:
    pop rax
    ret

## a function that is found never to return
    func f
    push rbx
    .cfi_def_cfa_offset 16
    test edi, edi
    je .Lfail
    pop rbx
    .cfi_def_cfa_offset 8
    ret
.Lfail:
    .cfi_def_cfa_offset 16
    call fail
    endf
.Lafter:
    push rax
    push rax
    ret
    func fail
    sub rsp, 24
    .cfi_def_cfa_offset 32
    call abort@plt
    endf

## a call that padding follows
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call unknown@plt
    endf
    .p2align 4, 0x90
    func g
    ret
    endf

## a call right before another function
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call unknown@plt
    endf
    func g
    ret
    endf

## a tail call
    func f
    push rbx
    .cfi_def_cfa_offset 16
    pop rbx
    .cfi_def_cfa_offset 8
    jmp g
    endf
    func g
    push r12
    .cfi_def_cfa_offset 16
    pop r12
    .cfi_def_cfa_offset 8
    jmp puts@plt
    endf

## a tail shared by two functions
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov ebx, 1
    jmp .Ltail
    endf
    func g
    push rbx
    .cfi_def_cfa_offset 16
    xor ebx, ebx
.Ltail:
    mov eax, ebx
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf

## a retpoline
    func f
    call .Lset
.Lspeculated:
    .cfi_def_cfa_offset 8
    pause
    lfence
    jmp .Lspeculated
    endf
    .p2align 4, 0xcc
    func g
.Lset:
    mov [rsp], rax
    endf
.Lreturn:
    ret

## a jump by a register
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov rax, rdi
    pop rbx
    .cfi_def_cfa_offset 8
    jmp rax
    endf

## calls leave their registers as they like
    func f
    mov r11, rsp
    and rsp, -32
    endf
.Lcall:
    call unknown@plt
    mov eax, 1
    ud2

## a function of this file that leaves a register alone
    func f
    mov r11, rsp
    and rsp, -32
    endf
.Lcall:
    call leaf
    .cfi_startproc
    .cfi_def_cfa r11, 8
    mov rsp, r11
    .cfi_def_cfa rsp, 8
    ret
    endf
    func leaf
    mov eax, 1
    ret
    endf

## a function of this file that changes it by what it calls
    func f
    mov r11, rsp
    and rsp, -32
    endf
.Lcall:
    call outer
    mov eax, 1
    ud2
    func outer
    call inner
    ret
    endf
    func inner
    xor r11d, r11d
    ret
    endf

## a function of this file that spoils FP
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    and rsp, -32
    .cfi_def_cfa rbp, 16
    call spoils
    endf
.Lafter:
    mov eax, 1
    ud2
    func spoils
    xor ebp, ebp
    .cfi_undefined rbp
    ret
    endf

## a jump behind a prefix
    func f
    push rbx
    .cfi_def_cfa_offset 16
    cmp dword ptr [rdi], 0
    je .Lprefix + 1
.Lprefix:
    lock cmpxchg [rsi], ecx
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf

## a jump into an instruction at another depth
    func f
    test edi, edi
    je .Lhidden + 2
.Lhidden:
    # movabs rax, ...; from the third byte on: nop; nop; nop; push rax; push rax; pop rax; pop rax; ret
    .byte 0x48, 0xb8, 0x90, 0x90, 0x90, 0x50
    endf
.Ldiffers:
    .byte 0x50, 0x58, 0x58
    .cfi_startproc
    .byte 0xc3
    ret
    .cfi_endproc

## the code of a signal's return
    func f
    ret
    endf
    func restore
    .cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6
    .cfi_escape 0x10, 16, 3, 0x77, 0xa8, 1
    .cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0
    mov rax, 15
    syscall
    endf
.Lafter:
    push rax
    ret

## a system call that ends the process
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov eax, 39
    syscall
    mov eax, 231
    syscall
    endf
.Lafter:
    push rax
    ret

## a new thread has another stack
    func f
    mov eax, 56
    syscall
    endf
.Lafter:
    xor ebp, ebp
    test eax, eax
    je .Lchild
    ret
.Lchild:
    ud2

## a tail call to a function that pointers lead to, too
    func f
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    xor ebp, ebp
    lea rdi, [rip+.Lg]
    call atexit@plt
    pop rbp
    .cfi_restore rbp
    .cfi_def_cfa_offset 8
    jmp .Lg
    endf
    .balign 16
.Lg:
    .cfi_startproc
    sub rsp, 40
    .cfi_def_cfa_offset 48
    call puts@plt
    add rsp, 40
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc

## a function of the same file that never returns, by its stub
    func f
    sub rsp, 24
    .cfi_def_cfa_offset 32
    call fail@plt
    endf
.Lpart:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    call puts@plt
    jmp .Lback
    .cfi_endproc
    .globl fail
    func fail
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call abort@plt
    endf
    func g
    push rbx
    .cfi_def_cfa_offset 16
    test edi, edi
    jne .Lpart
.Lback:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf

## a function of the same file that never returns, by its slot
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call qword ptr [rip+fail@gotpcrel]
    endf
.Lafter:
    ret
    .globl fail
    func fail
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call abort@plt
    endf

## a function of the same file that never returns, by a word that only the loader writes
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call qword ptr [rip+.Lslot]
    endf
    .balign 16
.Lpart:
    ret
    func fail
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call abort@plt
    endf
    .section .data.rel.ro, "aw"
.Lslot:
    .quad fail

## a function of the same file that never returns, by a word that anything may write
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call qword ptr [rip+.Lslot]
    add rsp, 8
    .cfi_def_cfa_offset 8
    ret
    endf
    func fail
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call abort@plt
    endf
    .data
.Lslot:
    .quad fail

## a label that an array names, in a function that never comes back
.Lf:
    .cfi_startproc
    sub rsp, 24
    .cfi_def_cfa_offset 32
.Lnext:
    call puts@plt
    mov rdx, [rbx]
    jmp rdx
    .cfi_endproc
    .balign 16
.Lg:
    .cfi_startproc
    sub rsp, 8
    .cfi_def_cfa_offset 16
    test edi, edi
    jne .Lcall
    add rsp, 8
    .cfi_def_cfa_offset 8
    ret
.Lcall:
    .cfi_def_cfa_offset 16
    call .Lf
    .cfi_endproc
    .balign 16
.Lcase:
    mov rdi, [rsp]
    jmp .Lnext
    .section .data.rel.ro, "aw"
    .quad .Lg, .Lcase

## a function of the same file that returns, by its stub
    func f
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call works@plt
    call qword ptr [rip+works@gotpcrel]
    add rsp, 8
    .cfi_def_cfa_offset 8
    ret
    endf
    .globl works
    func works
    ret
    endf

## a mark of a function after a call of which it is not known that it never returns
    func f
    sub rsp, 24
    .cfi_def_cfa_offset 32
    test edi, edi
    jne .Lfail
    add rsp, 24
    .cfi_def_cfa_offset 8
    ret
.Lfail:
    .cfi_def_cfa_offset 32
    call jumps
    endf
    .balign 16
.Lafter:
    endbr64
    sub rsp, 8
    call abort@plt
    func jumps
    mov rdx, [rdi]
    jmp rdx
    endf

## a function of this file that saves a register
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov rbx, rsp
    and rsp, -64
    .cfi_def_cfa rbx, 16
    call saves
    mov rsp, rbx
    .cfi_def_cfa rsp, 16
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf
    func saves
    push rbx
    .cfi_def_cfa_offset 16
    xor ebx, ebx
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf
