# SPDX-License-Identifier: Apache-2.0
# A row starts beyond 65,535 bytes: FRE type 2. The object is 70 KB.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	.skip	70000, 0x90
	popq	%rax
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
