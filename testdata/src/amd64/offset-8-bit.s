# SPDX-License-Identifier: Apache-2.0
# CFA offsets whose widest needs 8 bits in a row.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$112, %rsp
	.cfi_def_cfa_offset 120
	addq	$112, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
