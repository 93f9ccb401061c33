# SPDX-License-Identifier: Apache-2.0
# setcontext and longjmp: the caller's SP is saved at CFA+160, then in r8; CFA and RA count from rdi. Rows of version 3:
# CFA *(rdi+160), RA *(rdi+168), FP *(rdi+120); CFA r8, RA *(rdi+168), FP *(rdi+120).
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_def_cfa %rdi, 0
	.cfi_offset %rip, 168
	.cfi_offset %rsp, 160
	.cfi_offset %rbp, 120
	movq	160(%rdi), %r8
	.cfi_register %rsp, %r8
	nop
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
