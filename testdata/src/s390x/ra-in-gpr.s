# SPDX-License-Identifier: Apache-2.0
# RA is kept in r1.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	lgr	%r1,%r14
	.cfi_register 14, 1
	lgr	%r14,%r1
	.cfi_restore 14
	br	%r14
	.cfi_endproc
	.size	f, .-f
