# SPDX-License-Identifier: Apache-2.0
# CFA offsets whose widest needs 16 bits in a row.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$128, %rsp
	.cfi_def_cfa_offset 136
	subq	$32624, %rsp
	.cfi_def_cfa_offset 32760
	addq	$32752, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
