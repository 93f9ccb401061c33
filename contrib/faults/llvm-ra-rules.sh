# SPDX-License-Identifier: Apache-2.0
# LLVM ignores rules of RA. Version 2 has rows for neither (errata 2: for an undefined RA), so both functions should be
# left out.
cat > undefined.s << 'END'
f:	.cfi_startproc
	nop
	.cfi_undefined %rip
	nop
	.cfi_endproc
END
cat > register.s << 'END'
f:	.cfi_startproc
	pop %rcx
	.cfi_def_cfa_offset 0
	.cfi_register %rip, %rcx
	jmp *%rcx
	.cfi_endproc
END
for name in undefined register; do
  llvm-mc --gsframe --filetype=obj --triple=x86_64 $name.s -o $name.o
  cfi2sframe verify $name.o
done
# Prints with llvm 23:
#> undefined.o: .text+0x1: wrong: RA is undefined, but the row has a caller
#> register.o: .text+0x1: wrong: RA is rcx, the row has c-8
