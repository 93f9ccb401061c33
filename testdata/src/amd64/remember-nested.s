# SPDX-License-Identifier: Apache-2.0
# Nested remember/restore; the state includes the CFA. Rows: sp+8, +16, +24, +32, +24, +16, +8. GNU as
# keeps one slot in its own SFrame output and gets the rows behind the restores wrong.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	.cfi_remember_state
	pushq	%rax
	.cfi_def_cfa_offset 24
	.cfi_remember_state
	pushq	%rax
	.cfi_def_cfa_offset 32
	popq	%rax
	.cfi_restore_state
	popq	%rax
	.cfi_restore_state
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
