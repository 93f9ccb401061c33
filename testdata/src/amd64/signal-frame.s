# SPDX-License-Identifier: Apache-2.0
# Like glibc's __restore_rt: CFA = *(rsp+160), RA = *(rsp+168), FP = *(rsp+120), augmentation zRS; the
# FDE starts one byte before the code. Version 3 says it in one flexible row.
	.text
	nop
.Lbefore:
	nop
	.globl	restore_rt
	.type	restore_rt, @function
restore_rt:
	movq	$15, %rax
	syscall
.Lend:
	.size	restore_rt, .-restore_rt
	.section .eh_frame,"a",@progbits
.Lcie:
	.long	.Lcie_end-.Lcie_start
.Lcie_start:
	.long	0
	.byte	1
	.string	"zRS"
	.uleb128 1
	.sleb128 -8
	.byte	16
	.uleb128 1
	.byte	0x1b
	.balign	4
.Lcie_end:
	.long	.Lfde_end-.Lfde_start
.Lfde_start:
	.long	.Lfde_start-.Lcie
	.long	.Lbefore-.
	.long	.Lend-.Lbefore
	.uleb128 0
	.byte	0x0f, 4, 0x77, 0xa0, 0x01, 0x06	# CFA = *(rsp + 160)
	.byte	0x10, 16, 3, 0x77, 0xa8, 0x01	# RA at rsp + 168
	.byte	0x10, 6, 3, 0x77, 0xf8, 0x00	# FP at rsp + 120
	.balign	4
.Lfde_end:
	.long	0
	.section .note.GNU-stack,"",@progbits
