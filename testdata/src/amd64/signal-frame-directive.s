# SPDX-License-Identifier: Apache-2.0
# Augmentation zRS by directive with plain rows: the signal bit of version 3 is set, rows are sp+8.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_signal_frame
	nop
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
