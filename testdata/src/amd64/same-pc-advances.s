# SPDX-License-Identifier: Apache-2.0
# Two advances to one pc (advance_loc by 0 in between): the later rule wins, sp+24 at byte 1.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_escape 0x41, 0x0e, 16, 0x40, 0x0e, 24
	nop
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
