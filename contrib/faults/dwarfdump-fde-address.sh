# SPDX-License-Identifier: Apache-2.0
# llvm-dwarfdump does not apply R_390_PC32: the functions are at 0 and 2.
cat > two.s << 'END'
f:	.cfi_startproc
	br %r14
	.cfi_endproc
h:	.cfi_startproc
	br %r14
	.cfi_endproc
END
llvm-mc --filetype=obj --triple=s390x two.s -o two.o
llvm-dwarfdump --eh-frame two.o 2>/dev/null | grep -o 'FDE cie.*'
# Prints with llvm 23:
#> FDE cie=00000000 pc=00000020...00000022
#> FDE cie=00000000 pc=00000034...00000036
