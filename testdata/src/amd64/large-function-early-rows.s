# SPDX-License-Identifier: Apache-2.0
# A function of 300 bytes whose last row starts at byte 1: FRE type 0 holds it, though GNU as takes
# type 1.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	.skip	300, 0x90
	hlt
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
