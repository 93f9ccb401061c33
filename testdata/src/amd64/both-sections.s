# SPDX-License-Identifier: Apache-2.0
# The same CFI in .eh_frame and .debug_frame: each function counts once.
	.cfi_sections .eh_frame, .debug_frame
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
