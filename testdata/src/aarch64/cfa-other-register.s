// SPDX-License-Identifier: Apache-2.0
// CFA is x19+16.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	str	x19, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x19, -16
	mov	x19, sp
	.cfi_def_cfa_register x19
	mov	sp, x19
	.cfi_def_cfa_register sp
	ldr	x19, [sp], #16
	.cfi_restore x19
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	f, .-f
