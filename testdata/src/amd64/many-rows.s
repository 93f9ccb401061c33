# SPDX-License-Identifier: Apache-2.0
# 1,001 rows in one function: sp+8 and sp+16 in turn.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.rept	500
	pushq	%rax
	.cfi_adjust_cfa_offset 8
	popq	%rax
	.cfi_adjust_cfa_offset -8
	.endr
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
