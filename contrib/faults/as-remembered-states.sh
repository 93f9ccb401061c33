# SPDX-License-Identifier: Apache-2.0
# GNU as keeps one remembered state for SFrame, so the outer .cfi_restore_state restores the inner one again. 2.40 and
# 2.44 go wrong one instruction earlier.
cat > nested.s << 'END'
f:	.cfi_startproc
	push %rax
	.cfi_def_cfa_offset 16
	.cfi_remember_state
	push %rax
	.cfi_def_cfa_offset 24
	.cfi_remember_state
	push %rax
	.cfi_def_cfa_offset 32
	pop %rax
	.cfi_restore_state
	pop %rax
	.cfi_restore_state
	nop
	.cfi_endproc
END
as --gsframe nested.s -o nested.o
cfi2sframe verify nested.o
# Prints with binutils 2.47:
#> nested.o: .text+0x5: wrong: CFA is rsp+16, the row has rsp+24
