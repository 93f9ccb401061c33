# SPDX-License-Identifier: Apache-2.0
# A function of no instructions of its own CFI: one row, sp+8. readelf -wF of binutils 2.40 prints
# none.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	xorl	%eax, %eax
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
