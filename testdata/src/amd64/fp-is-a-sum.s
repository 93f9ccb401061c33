# SPDX-License-Identifier: Apache-2.0
# GHC's code with -g: the caller's FP is CFA-16, a sum, which version 3 counts from the CFA's register: rsp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$16, %rsp
	.cfi_def_cfa_offset 24
	.cfi_escape 0x14, 6, 2
	addq	$16, %rsp
	.cfi_def_cfa_offset 8
	.cfi_restore %rbp
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
