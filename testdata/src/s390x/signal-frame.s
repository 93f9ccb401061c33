# SPDX-License-Identifier: Apache-2.0
# Augmentation zRS.
	.text
	.globl	f
	.type	f, @function
f:
	.cfi_startproc
	.cfi_signal_frame
	nop
	svc	173
	.cfi_endproc
	.size	f, .-f
