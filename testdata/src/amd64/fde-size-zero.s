# SPDX-License-Identifier: Apache-2.0
# An FDE that covers no byte, and one behind it that covers one: the first must produce no SFrame
# function.
	.text
	.globl	empty
	.type	empty, @function
empty:
	.cfi_startproc

	.cfi_endproc
	.size	empty, .-empty
	.globl	g
	.type	g, @function
g:
	.cfi_startproc
	ret
	.cfi_endproc
	.size	g, .-g
	.section .note.GNU-stack,"",@progbits
