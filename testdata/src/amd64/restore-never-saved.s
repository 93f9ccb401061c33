# SPDX-License-Identifier: Apache-2.0
# Restore of registers that the CIE never set (DW_CFA_restore and restore_extended 0x06): no change,
# one row sp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_restore %rbp
	nop
	.cfi_escape 0x06, 6
	.cfi_escape 0x06, 66
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
