# SPDX-License-Identifier: Apache-2.0
# __fentry__: the CIE's return column is r0, which has no rule: RA is there.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc simple
	.cfi_def_cfa 15, 160
	.cfi_return_column 0
	br	%r0
	.cfi_endproc
	.size	f, .-f
