// SPDX-License-Identifier: Apache-2.0
// The RA state is part of what remember_state saves.
	.arch armv8.3-a
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	paciasp
	.cfi_negate_ra_state
	cbz	x0, 1f
	.cfi_remember_state
	autiasp
	.cfi_negate_ra_state
	ret
1:
	.cfi_restore_state
	nop
	autiasp
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	f, .-f
