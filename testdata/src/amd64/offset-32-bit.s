# SPDX-License-Identifier: Apache-2.0
# CFA offsets whose widest needs 32 bits in a row.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$32768, %rsp
	.cfi_def_cfa_offset 32776
	subq	$1015808, %rsp
	.cfi_def_cfa_offset 1048584
	addq	$1048576, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
