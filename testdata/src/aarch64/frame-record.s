// SPDX-License-Identifier: Apache-2.0
// stp x29, x30: rows sp+0; sp+32 with FP c-32, RA c-24; fp+32; sp+0.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	mov	x29, sp
	.cfi_def_cfa_register x29
	ldp	x29, x30, [sp], #32
	.cfi_def_cfa sp, 0
	.cfi_restore x30
	.cfi_restore x29
	ret
	.cfi_endproc
	.size	f, .-f
