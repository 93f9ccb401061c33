# SPDX-License-Identifier: Apache-2.0
# A frame of 65,536 bytes: the encoded CFA offset 8192 needs 16 bits.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	agfi	%r15,-65536
	.cfi_def_cfa_offset 65696
	agfi	%r15,65536
	.cfi_def_cfa_offset 160
	br	%r14
	.cfi_endproc
	.size	f, .-f
