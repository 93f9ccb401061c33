# SPDX-License-Identifier: Apache-2.0
# As -mbackchain: the old SP is stored at 0 of the new frame; RA at c-48, SP at c-40, sp+320.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	stmg	%r14,%r15,112(%r15)
	.cfi_offset 14, -48
	.cfi_offset 15, -40
	lgr	%r1,%r15
	aghi	%r15,-160
	.cfi_def_cfa_offset 320
	stg	%r1,0(%r15)
	lmg	%r14,%r15,272(%r15)
	.cfi_restore 15
	.cfi_restore 14
	.cfi_def_cfa_offset 160
	br	%r14
	.cfi_endproc
	.size	f, .-f
