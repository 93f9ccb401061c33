# SPDX-License-Identifier: Apache-2.0
# FP is the value rsp + 8 (DW_CFA_val_expression, breg7 8).
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x16, 6, 2, 0x77, 0x08
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
