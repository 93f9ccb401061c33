# SPDX-License-Identifier: Apache-2.0
# A leaf function keeps FP and RA in f0 and f2 (DWARF 16 and 17): version 2 puts the register in the
# offset word, version 3 uses flexible rows.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	ldgr	%f0,%r11
	.cfi_register 11, 16
	ldgr	%f2,%r14
	.cfi_register 14, 17
	lgdr	%r14,%f2
	.cfi_restore 14
	lgdr	%r11,%f0
	.cfi_restore 11
	br	%r14
	.cfi_endproc
	.size	f, .-f
