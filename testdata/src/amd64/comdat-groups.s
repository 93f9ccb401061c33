# SPDX-License-Identifier: Apache-2.0
# Two COMDAT groups, each with .text and its own .eh_frame section in the group, and a common
# .eh_frame.
	.section .text.first,"axG",@progbits,first,comdat
	.weak	first
	.type	first, @function
first:
	ret
.Lfirst_end:
	.section .eh_frame,"aG",@progbits,first,comdat
.Lfirst_cie:
	.long	1f-0f
0:	.long	0
	.byte	1
	.string	"zR"
	.uleb128 1
	.sleb128 -8
	.byte	16
	.uleb128 1
	.byte	0x1b, 0x0c, 7, 8, 0x90, 1
	.balign	4
1:	.long	3f-2f
2:	.long	2b-.Lfirst_cie
	.long	first-.
	.long	.Lfirst_end-first
	.uleb128 0
	.balign	4
3:
	.section .text.second,"axG",@progbits,second,comdat
	.weak	second
	.type	second, @function
second:
	ret
.Lsecond_end:
	.section .eh_frame,"aG",@progbits,second,comdat
.Lsecond_cie:
	.long	1f-0f
0:	.long	0
	.byte	1
	.string	"zR"
	.uleb128 1
	.sleb128 -8
	.byte	16
	.uleb128 1
	.byte	0x1b, 0x0c, 7, 8, 0x90, 1
	.balign	4
1:	.long	3f-2f
2:	.long	2b-.Lsecond_cie
	.long	second-.
	.long	.Lsecond_end-second
	.uleb128 0
	.balign	4
3:
	.text
	.globl	common
	.type	common, @function
common:
	.cfi_startproc
	ret
	.cfi_endproc
	.size	common, .-common
	.section .note.GNU-stack,"",@progbits
