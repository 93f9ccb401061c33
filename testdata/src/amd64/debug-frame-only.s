# SPDX-License-Identifier: Apache-2.0
# CFI in .debug_frame and none in .eh_frame, as Go and -fno-asynchronous-unwind-tables -g have it.
# Rows: sp+8, sp+16.
	.cfi_sections .debug_frame
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
