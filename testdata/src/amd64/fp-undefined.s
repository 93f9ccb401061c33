# SPDX-License-Identifier: Apache-2.0
# FP is undefined from the second byte on: not sayable in a default row.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_undefined %rbp
	xorl	%ebp, %ebp
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
