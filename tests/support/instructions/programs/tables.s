# SPDX-License-Identifier: Apache-2.0
# Tables of jumps of AMD64, and where functions begin, with CFI by hand.
# `## NAME` begins a program; `## LABEL REASON` says why code from a label on has no row.

.macro start
    func f
    push rbx
    .cfi_def_cfa_offset 16
.endm

# Two cases, of which one has a frame of its own; they are reached by the table only.
.macro cases
.Lfirst:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
.Lsecond:
    .cfi_def_cfa_offset 16
    push rax
    .cfi_def_cfa_offset 24
    add rsp, 16
    .cfi_def_cfa_offset 8
    ret
    endf
.endm

.macro distances
.section .rodata
.p2align 4
.Ltable: .long .Lfirst - .Ltable, .Lsecond - .Ltable
.endm

# What follows a table, and is not of it: distances from elsewhere, into the midst of the code.
.macro other_words
.Lother: .long f - .Lother + 1, f - .Lother + 1, f - .Lother + 1, f - .Lother + 1
.endm

.macro jump
    lea rdx, [rip+.Ltable]
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.endm

# A function that nothing names but what is put after it. Its tail call proves it only where it is known to begin.
.macro nameless label
    func f
    ret
    endf
.p2align 4, 0x90
    \label:
    .cfi_startproc
    push rbx
    .cfi_def_cfa_offset 16
    pop rbx
    .cfi_def_cfa_offset 8
    jmp f
    .cfi_endproc
.endm

## a limit by a comparison
    start
    cmp edi, 1
    ja .Lfirst
    mov edi, edi
    jump
    cases
    distances
    other_words

## a store of a double, which has the name of a string instruction
    start
    cmp edi, 1
    ja .Lfirst
    mov edi, edi
    lea rsi, [rip+.Ltable]
    movsd qword ptr [rsp-16], xmm0
    movsxd rax, dword ptr [rsi+rdi*4]
    add rax, rsi
    jmp rax
    cases
    distances
    other_words

## a limit by a comparison the other way
    start
    cmp rdi, 2
    jae .Lfirst
    jump
    cases
    distances
    other_words

## a limit by a branch to the jump
    start
    cmp rdi, 1
    jbe .Ljump
    jmp .Lfirst
.Ljump:
    jump
    cases
    distances
    other_words

## a limit by a mask
    start
    and edi, 1
    jump
    cases
    distances
    other_words

## a case that begins with a filler
    start
    cmp edi, 1
    ja .Lfirst
    mov edi, edi
    jump
.Lthird:
    nop
    jmp .Lfirst
    cases
.section .rodata
.p2align 4
.Ltable: .long .Lthird - .Ltable, .Lsecond - .Ltable
    other_words

## a limit by a byte
    start
    movzx edi, byte ptr [rsi]
    jump
    cases
    distances
    .rept 127
    .long .Lfirst - .Ltable, .Lsecond - .Ltable
    .endr
    other_words

## a number that counts from another one
    start
    lea eax, [rdi-5]
    cmp eax, 1
    ja .Lfirst
    lea rdx, [rip+.Ltable]
    movsxd rax, dword ptr [rdx+rax*4]
    add rax, rdx
    notrack jmp rax
    cases
    distances
    other_words

## a comparison in memory
    start
    cmp dword ptr [rdi], 1
    ja .Lfirst
    mov eax, [rdi]
    lea rdx, [rip+.Ltable]
    movsxd rax, dword ptr [rdx+rax*4]
    add rax, rdx
    jmp rax
    cases
    distances
.Lend: .long 0x7fffffff

## the jump in two steps over another block
    start
    cmp edi, 1
    ja .Lfirst
    lea rdx, [rip+.Ltable]
    movsxd rax, dword ptr [rdx+rdi*4]
    test esi, esi
    je .Lsum
    mov rcx, rsi
.Lsum:
    add rax, rdx
    jmp rax
    cases
    distances
    other_words

## an address in a register
    start
    lea rcx, [rip+.Lsecond]
    test edi, edi
    jne .Lgo
    lea rcx, [rip+.Lfirst]
.Lgo:
    jmp rcx
    cases

## an array that a register counted from later
    start
    lea r8, [rip+.Ltable]
    mov r8, rsi
    movzx ecx, byte ptr [r8+rcx+4]
    jump
    cases
    distances
    .long 0x7fffffff

## an array that a register counts from after a call
    start
    lea rcx, [rip+.Ltable]
    call g
    movzx ecx, byte ptr [rcx+rax+4]
    jump
    cases
    func g
    ret
    endf
    distances
    .long 0x7fffffff

## short words that count from another function
    func g
    ret
    endf
    start
    lea rcx, [rip+.Ltable]
    movzx eax, word ptr [rcx+rdi*2]
    lea rdx, [rip+g]
    add rax, rdx
    jmp rax
    cases
.section .rodata
.Ltable: .word .Lfirst - g, .Lsecond - g

## two tables, one after the other
    start
    test esi, esi
    jne .Lelse
    cmp edi, 1
    ja .Lfirst
    jump
.Lelse:
    lea r8, [rip+.Ltable2]
    movsxd rax, dword ptr [r8+rdi*4]
    add rax, r8
    jmp rax
.Lthird:
    mov eax, 3
    jmp .Lfirst
    cases
    distances
.Ltable2: .long .Lthird - .Ltable2, .Lfirst - .Ltable2, 0x7fffffff

## words of 8 bytes, at fixed addresses
    start
    cmp edi, 1
    ja .Lfirst
    mov edi, edi
    jmp qword ptr [.Ltable+rdi*8]
    cases
.section .rodata
.Ltable: .quad .Lfirst, .Lsecond, f+1

## words loaded before, at fixed addresses
    start
    cmp edi, 1
    ja .Lfirst
    mov rax, [.Ltable+rdi*8]
    jmp rax
    cases
.section .rodata
.Ltable: .quad .Lfirst, .Lsecond, f+1

## an address of four bytes, at fixed addresses
    start
    mov ecx, offset .Lsecond
    test edi, edi
    jne .Lgo
    mov ecx, offset .Lfirst
.Lgo:
    jmp rcx
    cases

## an entry by a symbol without a type
    nameless nameless

## an entry by a word of data
    nameless .Lnameless
.data
    .quad .Lnameless

## an entry by a call
    nameless .Lnameless
    func g
    sub rsp, 8
    .cfi_def_cfa_offset 16
    call .Lnameless
    add rsp, 8
    .cfi_def_cfa_offset 8
    ret
    endf

## an entry by a load of the address
    nameless .Lnameless
    func g
    lea rax, [rip+.Lnameless]
    ret
    endf

## an entry by a jump
    nameless .Lnameless
    func g
    xor eax, eax
    jmp .Lnameless
    endf

## an entry by an array of initializers
    nameless .Lnameless
.section .init_array,"aw",%init_array
    .quad .Lnameless

## an index without any limit: words are taken up to the first that leads to no instruction
    start
    jump
    cases
    distances
    .long 0x7fffffff

## a word after a table, to code that calls and meets the function with another frame
    start
    jump
    cases
.Lstray:
    call puts
    push rax
    jmp .Lfirst
    distances
    .long .Lstray - .Ltable, 0x7fffffff

## a table with a word that leads elsewhere
    start
    cmp edi, 2
    ja .Lend
    jump
.Lend:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
.Lcases:
    .cfi_def_cfa_offset 16
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf
.section .rodata
.Ltable: .long .Lcases - .Ltable, .Lcases - .Ltable, 0x7fffffff

## no entry
    func f
    ret
    endf
.p2align 4, 0x90
.Lnameless:
    push rbx
    pop rbx
    jmp f

## no entry, but a return
    func f
    ret
    endf
.p2align 4, 0x90
.Lnameless:
    .cfi_startproc
    push rbx
    .cfi_def_cfa_offset 16
    test edi, edi
    je .Lshort
    call f
.Lshort:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.Lnext:
    .cfi_startproc
    xor eax, eax
    ret
    .cfi_endproc

# None of them says that there is a frame. A jump back leads to its end, and a branch that is never taken to other code.
## no entry, in the midst of a function
    func f
    push rbx
    .cfi_def_cfa_offset 16
    test edi, edi
    je .Lend
    jmp rcx
.Lend:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
.Lback:
    .cfi_def_cfa_offset 16
    mov eax, 1
    jmp .Lend
.Lnever:
    cmp edi, 4
    ja .Lafter
    jmp rcx
.Lother:
    cmp edi, 4
    ja e
    jmp rcx
.Lcases:
    lea rdx, [rip+.Ltable]
    movsxd rax, dword ptr [rdx+rdi*4]
    add rax, rdx
    jmp rax
.Lout:
    pop rbx
    .cfi_def_cfa_offset 8
    ret
.Lafter:
    endf
.p2align 4, 0x90
    func e
    ret
    endf
    .section .rodata
.Ltable: .long .Lback - .Ltable, e - .Ltable, 0x7fffffff

# Control that is followed from there contradicts what is known.
## addresses in the midst of a function are no entries
    func f
    push rbx
    .cfi_def_cfa_offset 16
    mov rbx, rdi
    sub rsp, 32
    .cfi_def_cfa_offset 48
    add rsp, 32
    .cfi_def_cfa_offset 16
    pop rbx
    .cfi_def_cfa_offset 8
    ret
    endf
.data
    .quad f + 2, f + 3, f + 4

# What looks like the address of a function: the bytes there come to no end that confirms them.
## data among code
    func f
    ret
    endf
.p2align 4
.Ldata:
    .byte 0x50, 0x50, 0xc3, 0, 0, 0, 0, 0
.data
    .quad .Ldata
