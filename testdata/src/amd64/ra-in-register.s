# SPDX-License-Identifier: Apache-2.0
# The return address is in rcx, as in a helper that popped it: SFrame version 3 needs a flexible row,
# versions 1 and 2 cannot say it.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	popq	%rcx
	.cfi_def_cfa_offset 0
	.cfi_register %rip, %rcx
	jmp	*%rcx
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
