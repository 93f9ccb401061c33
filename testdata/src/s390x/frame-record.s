# SPDX-License-Identifier: Apache-2.0
# stmg r11..r15: RA at c-48, FP at c-72; rows sp+160, sp+160 with saves, sp+320, fp+320.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	stmg	%r11,%r15,88(%r15)
	.cfi_offset 11, -72
	.cfi_offset 14, -48
	.cfi_offset 15, -40
	aghi	%r15,-160
	.cfi_def_cfa_offset 320
	lgr	%r11,%r15
	.cfi_def_cfa_register 11
	lmg	%r11,%r15,248(%r11)
	.cfi_restore 15
	.cfi_restore 14
	.cfi_restore 11
	.cfi_def_cfa 15, 160
	br	%r14
	.cfi_endproc
	.size	f, .-f
