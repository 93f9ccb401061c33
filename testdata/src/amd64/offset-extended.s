# SPDX-License-Identifier: Apache-2.0
# DW_CFA_offset_extended of FP (0x05) and of register 66; DW_CFA_offset_extended_sf (0x11) of FP. FP
# at c-16, then at c+16 (a positive offset).
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x05, 6, 2
	.cfi_escape 0x05, 66, 4
	nop
	.cfi_escape 0x11, 6, 0x7e
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
