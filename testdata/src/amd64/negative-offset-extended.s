# SPDX-License-Identifier: Apache-2.0
# DW_CFA_GNU_negative_offset_extended (0x2f): the operand is subtracted, FP at c+16.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x2f, 6, 2
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
