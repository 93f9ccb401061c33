# SPDX-License-Identifier: Apache-2.0
# r14 alone is saved: RA at c-48.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	stg	%r14,112(%r15)
	.cfi_offset 14, -48
	lg	%r14,112(%r15)
	.cfi_restore 14
	br	%r14
	.cfi_endproc
	.size	f, .-f
