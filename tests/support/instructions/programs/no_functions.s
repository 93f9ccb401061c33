# SPDX-License-Identifier: Apache-2.0
# Symbols of type FUNC on code that is no function: handlers, a thread, operations of an interpreter in its frame.
	.intel_syntax noprefix
	.text
	.globl asm_exc_pf
	.type asm_exc_pf,@function
asm_exc_pf:
	endbr64
	cld
	push rax
	push rbx
	push rbp
	mov rdi, rsp
	call handler
	pop rbp
	pop rbx
	pop rax
	add rsp, 8
	iretq
	.size asm_exc_pf,.-asm_exc_pf
	.globl asm_sysvec
	.type asm_sysvec,@function
asm_sysvec:
	push -1
	push rdi
	push rsi
	mov rdi, rsp
	call handler
	jmp ret_common
	.size asm_sysvec,.-asm_sysvec
	.globl ret_common
	.type ret_common,@function
ret_common:
	pop rsi
	pop rdi
	add rsp, 8
	iretq
	.size ret_common,.-ret_common
	.globl thread_start
	.type thread_start,@function
thread_start:           # entered by clone(): stack has fn,arg; no return address
	pop rax
	pop rdi
	call rax
	mov edi, eax
	mov eax, 60
	syscall
	.size thread_start,.-thread_start
	.globl vm_dispatch
	.type vm_dispatch,@function
vm_enter:
	.globl vm_enter
	.type vm_enter,@function
	push rbp
	push rbx
	sub rsp, 40
	mov rbx, rdi
	jmp [rbx]
	.size vm_enter,.-vm_enter
	.globl op_add
	.type op_add,@function
op_add:	call handler
	add rbx, 8
	jmp [rbx]
	.size op_add,.-op_add
	.globl op_ret
	.type op_ret,@function
op_ret: add rsp, 40
	pop rbx
	pop rbp
	ret
	.size op_ret,.-op_ret
	.type handler,@function
handler: ret
	.globl _start
_start: mov eax,60
	syscall
	.section .note.GNU-stack,"",@progbits
