// SPDX-License-Identifier: Apache-2.0
// Augmentation zRS, as the kernel's __kernel_rt_sigreturn: the signal bit of version 3.
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa x29, 0
	.cfi_offset x29, 0
	.cfi_offset x30, 8
	mov	x8, #139
	svc	#0
	.cfi_endproc
	.size	f, .-f
