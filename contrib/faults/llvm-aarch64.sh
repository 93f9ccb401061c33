# SPDX-License-Identifier: Apache-2.0
# LLVM leaves out every function of AArch64: it takes RA's register for a special one.
cat > frame.s << 'END'
f:	.cfi_startproc
	stp x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset 29, -16
	.cfi_offset 30, -8
	ret
	.cfi_endproc
END
llvm-mc --gsframe --filetype=obj --triple=aarch64 frame.s -o frame.o 2>&1 | cut -c 1-67
cfi2sframe verify frame.o | grep missing
# Prints with llvm 23:
#> <unknown>:0: warning: non-default RA register in .cfi_return_column
#> frame.o: .text+0x0: missing: no SFrame FDE, though this version can express it
