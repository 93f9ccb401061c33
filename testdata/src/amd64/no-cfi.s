# SPDX-License-Identifier: Apache-2.0
# Code without any CFI: the result has no functions.
	.text
	.globl	f
f:
	ret
	.section .note.GNU-stack,"",@progbits
