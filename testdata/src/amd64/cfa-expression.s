# SPDX-License-Identifier: Apache-2.0
# CFA = *(rsp + 40) + 8 (breg7 40; deref; plus_uconst 8), as OpenSSL's hand-written functions have it:
# no SFrame version can say it.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_escape 0x0f, 5, 0x77, 0x28, 0x06, 0x23, 0x08
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
