# SPDX-License-Identifier: Apache-2.0
# DW_CFA_GNU_args_size (0x2e) and DW_CFA_nop (0x00) have no effect on rows: sp+8, sp+24.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	subq	$16, %rsp
	.cfi_def_cfa_offset 24
	.cfi_escape 0x2e, 0x10
	.cfi_escape 0x00
	addq	$16, %rsp
	.cfi_escape 0x2e, 0x00
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
