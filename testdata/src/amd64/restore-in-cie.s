# SPDX-License-Identifier: Apache-2.0
# .cfi_restore before the first advance stands in the CIE (PR gas/33170): no rule. Rows: rsp+8; rsp+16, FP c-16; rsp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_restore %rbx
	.cfi_restore %rbp
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	popq	%rbp
	.cfi_restore %rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
