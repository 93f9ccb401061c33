# SPDX-License-Identifier: Apache-2.0
# FP at the address rbp + 0 (DW_CFA_expression, breg6 0).
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rbp
	.cfi_def_cfa_offset 16
	movq	%rsp, %rbp
	.cfi_escape 0x10, 6, 2, 0x76, 0x00
	leave
	.cfi_def_cfa_offset 8
	.cfi_restore %rbp
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
