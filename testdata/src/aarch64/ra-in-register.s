// SPDX-License-Identifier: Apache-2.0
// RA is kept in x9.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	mov	x9, x30
	.cfi_register x30, x9
	bl	f
	mov	x30, x9
	.cfi_restore x30
	ret
	.cfi_endproc
	.size	f, .-f
