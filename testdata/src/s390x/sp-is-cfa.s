# SPDX-License-Identifier: Apache-2.0
# Go: the CFA is the caller's SP itself, not 160 above it. Rows: r15+168, r15+264 with RA at c-264.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_def_cfa 15, 8
	.cfi_val_offset 15, 0
	aghi	%r15, -96
	.cfi_def_cfa_offset 104
	.cfi_offset 14, -104
	aghi	%r15, 96
	.cfi_def_cfa_offset 8
	.cfi_restore 14
	br	%r14
	.cfi_endproc
	.size	f, .-f
