# SPDX-License-Identifier: Apache-2.0
# DW_CFA_def_cfa_sf (0x12) and DW_CFA_def_cfa_offset_sf (0x13) scale by the data alignment: sp+16,
# then sp+32.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x12, 7, 0x7e
	nop
	.cfi_escape 0x13, 0x7c
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
