# SPDX-License-Identifier: Apache-2.0
# CFA = *(rsp + 16): a flexible row with deref in version 3.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x0f, 3, 0x77, 0x10, 0x06
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
