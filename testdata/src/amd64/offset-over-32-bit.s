# SPDX-License-Identifier: Apache-2.0
# A CFA offset of 2**31 (made up) is the first that no row can hold; 2**31-8 is fine.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_def_cfa_offset 0x7ffffff8
	nop
	.cfi_def_cfa_offset 0x80000000
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
