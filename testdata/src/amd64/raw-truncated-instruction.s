# SPDX-License-Identifier: Apache-2.0
# The FDE ends within DW_CFA_def_cfa's operands: malformed, the FDE fails.
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
	.byte	0x1b
	.byte	0x0c, 7, 8, 0x90, 1
	.balign	8
.Lcie_e:
	.long	.Lfde_e-.Lfde_s
.Lfde_s:
	.long	.Lfde_s-.Lcie
	.long	f-.
	.long	.Lf_end-f
	.uleb128 0
	.balign	8, 0
	.byte	0, 0, 0, 0, 0, 0, 0x0c, 0x87
	.balign	8
.Lfde_e:
	.long	0
	.section .note.GNU-stack,"",@progbits
