# SPDX-License-Identifier: Apache-2.0
# FP saved at c-16, c-136 (16 bits) and c-40000 (32 bits).
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_offset %rbp, -16
	nop
	.cfi_offset %rbp, -136
	nop
	.cfi_offset %rbp, -40000
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
