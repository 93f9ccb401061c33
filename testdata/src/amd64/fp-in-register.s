# SPDX-License-Identifier: Apache-2.0
# FP is kept in r11: a flexible row in version 3, not sayable before.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	movq	%rbp, %r11
	.cfi_register %rbp, %r11
	xorl	%ebp, %ebp
	movq	%r11, %rbp
	.cfi_restore %rbp
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
