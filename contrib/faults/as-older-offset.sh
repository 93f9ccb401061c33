# SPDX-License-Identifier: Apache-2.0
# If .cfi_def_cfa_offset and .cfi_def_cfa_register apply at one address, GNU as gives the register the offset of the row
# before.
cat > same.s << 'END'
f:	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	.cfi_def_cfa_register %rbp
	nop
	.cfi_endproc
END
as --gsframe same.s -o same.o
cfi2sframe verify same.o
# Prints with binutils 2.40, 2.44 and 2.47:
#> same.o: .text+0x1: wrong: CFA is rbp+16, the row has rbp+8
