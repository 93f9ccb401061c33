# SPDX-License-Identifier: Apache-2.0
# DW_CFA_val_offset_sf (0x15) of SP, CFA+8: the caller's SP is not DWARF's CFA.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x15, 7, 0x7f
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
