// SPDX-License-Identifier: Apache-2.0
// paciasp and autiasp: the RA-mangled bit is set in the rows at 4 to 16 and clear again at 16.
	.arch armv8.3-a
	.text
	.globl	f
	.type	f, %function
f:
	.cfi_startproc
	paciasp
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	ldp	x29, x30, [sp], #16
	.cfi_restore x30
	.cfi_restore x29
	.cfi_def_cfa_offset 0
	autiasp
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	f, .-f
