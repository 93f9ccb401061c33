# SPDX-License-Identifier: Apache-2.0
# CFA = sp+164: (164 - 160) / 8 is no whole number, the row cannot be encoded.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_def_cfa_offset 164
	br	%r14
	.cfi_endproc
	.size	f, .-f
