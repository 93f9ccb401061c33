// SPDX-License-Identifier: Apache-2.0
// Outermost frame: x30 undefined, as in _start.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	.cfi_undefined x30
	mov	x29, xzr
	bl	f
	brk	#1
	.cfi_endproc
	.size	f, .-f
