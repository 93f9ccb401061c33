# SPDX-License-Identifier: Apache-2.0
# FP alone is in f0; RA stays in r14.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	ldgr	%f0,%r11
	.cfi_register 11, 16
	lgdr	%r11,%f0
	.cfi_restore 11
	br	%r14
	.cfi_endproc
	.size	f, .-f
