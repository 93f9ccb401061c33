# SPDX-License-Identifier: Apache-2.0
# GNU as turns .cfi_adjust_cfa_offset into absolute offsets. Rows: sp+8, sp+16, sp+24, sp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rbx
	.cfi_adjust_cfa_offset 8
	pushq	%r12
	.cfi_adjust_cfa_offset 8
	addq	$16, %rsp
	.cfi_adjust_cfa_offset -16
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
