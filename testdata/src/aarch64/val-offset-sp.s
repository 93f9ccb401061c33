// SPDX-License-Identifier: Apache-2.0
// The caller's SP is CFA+0 by DW_CFA_val_offset: no effect.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	nop
	.cfi_val_offset sp, 0
	ret
	.cfi_endproc
	.size	f, .-f
