// SPDX-License-Identifier: Apache-2.0
// A frame of 65,536 bytes: offsets need 32 bits.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	sub	sp, sp, #16, lsl #12
	.cfi_def_cfa_offset 65536
	add	sp, sp, #16, lsl #12
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	f, .-f
