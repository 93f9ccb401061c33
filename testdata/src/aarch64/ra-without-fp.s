// SPDX-License-Identifier: Apache-2.0
// x30 alone is saved: RA c-16, FP untouched.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	str	x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x30, -16
	ldr	x30, [sp], #16
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	f, .-f
