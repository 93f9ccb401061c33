# SPDX-License-Identifier: Apache-2.0
# 70,001 rows: more than the 16-bit row count of version 3 holds. The object is 280 KB.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.rept	35000
	pushq	%rax
	.cfi_adjust_cfa_offset 8
	popq	%rax
	.cfi_adjust_cfa_offset -8
	.endr
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
