# SPDX-License-Identifier: Apache-2.0
# The caller's SP is CFA-160 by DW_CFA_val_offset, which is the rule anyway: no effect.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_val_offset 15, -160
	br	%r14
	.cfi_endproc
	.size	f, .-f
