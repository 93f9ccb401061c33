// SPDX-License-Identifier: Apache-2.0
// DW_CFA_AARCH64_negate_ra_state_with_pc (0x2c): no SFrame version can say it.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x2c
	ret
	.cfi_endproc
	.size	f, .-f
