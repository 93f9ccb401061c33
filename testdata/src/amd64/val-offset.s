# SPDX-License-Identifier: Apache-2.0
# The caller's SP is CFA+0 by DW_CFA_val_offset: no effect on SFrame rows. Then FP is a value, CFA-16:
# no SFrame version can say it.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	nop
	.cfi_val_offset %rsp, 0
	nop
	.cfi_val_offset %rbp, -16
	ret
	.cfi_endproc
	.size	f, .-f
	.section .note.GNU-stack,"",@progbits
