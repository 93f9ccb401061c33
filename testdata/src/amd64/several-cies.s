# SPDX-License-Identifier: Apache-2.0
# Functions with a plain CIE, a signal frame, another return column and a personality with LSDA: four
# CIEs; the function with return column 3 has RA in that register.
	.text
	.type	plain, @function
plain:
	.cfi_startproc
	nop
	ret
	.cfi_endproc
	.type	signal, @function
signal:
	.cfi_startproc
	.cfi_signal_frame
	nop
	ret
	.cfi_endproc
	.type	column, @function
column:
	.cfi_startproc
	.cfi_return_column 3
	nop
	ret
	.cfi_endproc
	.type	throwing, @function
throwing:
	.cfi_startproc
	.cfi_personality 0x9b, DW.ref.personality
	.cfi_lsda 0x1b, .Llsda
	pushq	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	popq	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.section .gcc_except_table,"a",@progbits
.Llsda:
	.byte	0xff, 0xff, 0x01, 0
	.section .data.rel.local,"aw",@progbits
	.balign	8
DW.ref.personality:
	.quad	plain
	.section .note.GNU-stack,"",@progbits
