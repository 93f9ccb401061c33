# SPDX-License-Identifier: Apache-2.0
# CFA = rsp + 16 spelled as an expression (breg7 16): the same as DW_CFA_def_cfa.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x0f, 2, 0x77, 0x10
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
