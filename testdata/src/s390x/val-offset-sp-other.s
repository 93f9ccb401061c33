# SPDX-License-Identifier: Apache-2.0
# The caller's SP is CFA-8: SFrame's CFA is DWARF's and 152.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_val_offset 15, -8
	br	%r14
	.cfi_endproc
	.size	f, .-f
