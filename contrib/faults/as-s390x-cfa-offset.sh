# SPDX-License-Identifier: Apache-2.0
# Rows of s390x store (CFA offset - 160) / 8. GNU as rounds an offset that is no multiple of 8; the function should be
# left out.
cat > unaligned.s << 'END'
f:	.cfi_startproc
	nop
	.cfi_def_cfa_offset 164
	br %r14
	.cfi_endproc
END
s390x-linux-gnu-as --gsframe unaligned.s -o unaligned.o
cfi2sframe verify unaligned.o | grep CFA
# Prints with binutils 2.47:
#> unaligned.o: .text+0x4: wrong: CFA is r15+164, the row has r15+160
