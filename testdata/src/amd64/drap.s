# SPDX-License-Identifier: Apache-2.0
# Over-aligned frame as GCC writes it: CFA by r10, then CFA = *(rbp - 8) as an expression, FP at
# rbp+0. Versions 1 and 2 cannot say it; version 3 can in flexible rows.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	leaq	8(%rsp), %r10
	.cfi_def_cfa %r10, 0
	andq	$-32, %rsp
	pushq	-8(%r10)
	pushq	%rbp
	movq	%rsp, %rbp
	.cfi_escape 0x10, 6, 2, 0x76, 0x00
	pushq	%r10
	.cfi_escape 0x0f, 3, 0x76, 0x78, 0x06
	subq	$40, %rsp
	movq	-8(%rbp), %r10
	.cfi_def_cfa %r10, 0
	leave
	leaq	-8(%r10), %rsp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
