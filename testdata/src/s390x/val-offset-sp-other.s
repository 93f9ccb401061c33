# SPDX-License-Identifier: Apache-2.0
# The caller's SP is CFA-8: not CFA-160, cannot be said.
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
