// SPDX-License-Identifier: Apache-2.0
// CFA = sp + 16 + 8 * VG (breg31 16; bregx 46 0; lit8; mul; plus): no SFrame version can say it.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x0f, 8, 0x8f, 0x10, 0x92, 0x2e, 0x00, 0x38, 0x1e, 0x22
	ret
	.cfi_endproc
	.size	f, .-f
