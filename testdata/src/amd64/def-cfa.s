# SPDX-License-Identifier: Apache-2.0
# DW_CFA_def_cfa sets register and offset at once. Rows: sp+8, sp+24, sp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$16, %rsp
	.cfi_def_cfa %rsp, 24
	addq	$16, %rsp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
