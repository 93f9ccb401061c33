# SPDX-License-Identifier: Apache-2.0
# r11 alone is saved: the RA word of the row is 0, a padding.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	stg	%r11,88(%r15)
	.cfi_offset 11, -72
	lg	%r11,88(%r15)
	.cfi_restore 11
	br	%r14
	.cfi_endproc
	.size	f, .-f
