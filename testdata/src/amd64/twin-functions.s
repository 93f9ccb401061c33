# SPDX-License-Identifier: Apache-2.0
# Three functions with equal CFI: their rows may be stored once.
	.text
	.globl	f0
	.type	f0, @function
f0:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f0, .-f0
	.section .note.GNU-stack,"",@progbits
	.text
	.globl	f1
	.type	f1, @function
f1:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f1, .-f1
	.section .note.GNU-stack,"",@progbits
	.text
	.globl	f2
	.type	f2, @function
f2:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f2, .-f2
	.section .note.GNU-stack,"",@progbits
