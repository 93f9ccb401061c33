// SPDX-License-Identifier: Apache-2.0
// No frame: one row sp+0, RA in x30.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	ret
	.cfi_endproc
	.size	f, .-f
