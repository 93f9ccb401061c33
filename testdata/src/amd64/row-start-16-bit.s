# SPDX-License-Identifier: Apache-2.0
# A row starts beyond 255 bytes: FRE type 1. Rows: sp+8 at 0, sp+16 at 1, sp+8 at 302.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	.skip	300, 0x90
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
