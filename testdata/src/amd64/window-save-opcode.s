# SPDX-License-Identifier: Apache-2.0
# Opcode 0x2d on AMD64 is SPARC's window_save: meaningless here, must not count as a pointer
# authentication toggle.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_window_save
	nop
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
