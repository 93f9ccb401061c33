# SPDX-License-Identifier: Apache-2.0
# RA becomes undefined in mid-function: a row sp+8, then an outermost row.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_undefined %rip
	hlt
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
