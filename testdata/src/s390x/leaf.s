# SPDX-License-Identifier: Apache-2.0
# No frame: one row sp+160, RA in r14.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	br	%r14
	.cfi_endproc
	.size	f, .-f
