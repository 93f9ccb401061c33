# SPDX-License-Identifier: Apache-2.0
# Outermost frame: RA undefined from the first byte on, as in _start.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_undefined %rip
	xorl	%ebp, %ebp
	call	f
	hlt
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
