# SPDX-License-Identifier: Apache-2.0
# Outermost frame: r14 undefined, as in _start.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_undefined 14
	lghi	%r11,0
	brasl	%r14,f
	j	.+2
	.cfi_endproc
	.size	f, .-f
