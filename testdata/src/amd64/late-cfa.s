# SPDX-License-Identifier: Apache-2.0
# A function whose CFA gets a rule only after its first instructions: GNU as describes it from there on.

	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc simple
	nop
	nop
	.cfi_def_cfa %rsp, 8
	.cfi_offset %rip, -8
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	popq	%rbp
	.cfi_def_cfa_offset 8
	.cfi_restore %rbp
	ret
	.cfi_endproc
	.size	f, .-f
