# SPDX-License-Identifier: Apache-2.0
# A function in .text, its cold part in .text.unlikely, another in .text.startup: three FDEs against
# three sections.
	.text
	.type	f, @function
f:
	.cfi_startproc
	pushq	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	testl	%edi, %edi
	js	f.cold
	popq	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.section .text.unlikely,"ax",@progbits
	.type	f.cold, @function
f.cold:
	.cfi_startproc
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	ud2
	.cfi_endproc
	.section .text.startup,"ax",@progbits
	.type	main, @function
main:
	.cfi_startproc
	ret
	.cfi_endproc
	.section .note.GNU-stack,"",@progbits
