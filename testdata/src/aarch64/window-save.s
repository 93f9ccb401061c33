// SPDX-License-Identifier: Apache-2.0
// Opcode 0x2d by .cfi_window_save is negate_ra_state here: the mangled bit toggles.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	hint	#25
	.cfi_window_save
	hint	#29
	.cfi_window_save
	ret
	.cfi_endproc
	.size	f, .-f
