# SPDX-License-Identifier: Apache-2.0
# FDE addresses as sdata8 relative to the GOT (R_X86_64_GOTOFF64); readelf 2.40 to 2.47 cannot apply
# the relocation and warns. Rows: sp+8, sp+16 at byte 1.
	.text
	.globl	f
	.type	f, @function
f:
	pushq	%rax
	popq	%rax
	ret
.Lf_end:
	.size	f, .-f
	.section .eh_frame,"a",@progbits
.Lcie:
	.long	.Lcie_e-.Lcie_s
.Lcie_s:
	.long	0
	.byte	1
	.string	"zR"
	.uleb128 1
	.sleb128 -8
	.byte	16
	.uleb128 1
	.byte	0x3c
	.byte	0x0c, 7, 8, 0x90, 1
	.balign	8
.Lcie_e:
	.long	.Lfde_e-.Lfde_s
.Lfde_s:
	.long	.Lfde_s-.Lcie
	.quad	f-_GLOBAL_OFFSET_TABLE_
	.quad	.Lf_end-f
	.uleb128 0
	.byte	0x41, 0x0e, 16
	.balign	8
.Lfde_e:
	.long	0
	.section .note.GNU-stack,"",@progbits
