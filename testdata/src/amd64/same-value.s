# SPDX-License-Identifier: Apache-2.0
# Same value is the rule at entry as well: one row, sp+8, after merging equal rows.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_same_value %rbp
	nop
	.cfi_same_value %rbx
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
