// SPDX-License-Identifier: Apache-2.0
// Augmentation zRB (.cfi_b_key_frame): the key bit of the function's info byte is set.
	.arch armv8.3-a
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	.cfi_b_key_frame
	pacibsp
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	ldp	x29, x30, [sp], #16
	.cfi_restore x30
	.cfi_restore x29
	.cfi_def_cfa_offset 0
	autibsp
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	f, .-f
