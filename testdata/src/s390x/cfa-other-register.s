# SPDX-License-Identifier: Apache-2.0
# CFA is r10+160.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	lgr	%r10,%r15
	.cfi_def_cfa_register 10
	aghi	%r15,-160
	lgr	%r15,%r10
	.cfi_def_cfa_register 15
	br	%r14
	.cfi_endproc
	.size	f, .-f
