// SPDX-License-Identifier: Apache-2.0
// x29 alone is saved: default rows cannot say it; version 3 can in a flexible row with a padding word
// for RA.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	str	x29, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	ldr	x29, [sp], #16
	.cfi_restore x29
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	f, .-f
