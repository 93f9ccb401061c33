# SPDX-License-Identifier: Apache-2.0
# Encoded CFA offsets 127 (sp+1176) and 128 (sp+1184): the last of 8 bits and the first of 16.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	aghi	%r15,-1016
	.cfi_def_cfa_offset 1176
	aghi	%r15,-8
	.cfi_def_cfa_offset 1184
	aghi	%r15,1024
	.cfi_def_cfa_offset 160
	br	%r14
	.cfi_endproc
	.size	f, .-f
