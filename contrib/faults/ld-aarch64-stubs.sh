# SPDX-License-Identifier: Apache-2.0
# GNU ld writes no rows for the PLT stubs of AArch64.
cat > start.s << 'END'
	.globl _start
_start:	.cfi_startproc
	bl g
	.cfi_endproc
END
cat > g.s << 'END'
	.globl g
g:	.cfi_startproc
	ret
	.cfi_endproc
END
for name in start g; do aarch64-linux-gnu-as --gsframe $name.s -o $name.o; done
aarch64-linux-gnu-ld -shared g.o -o libg.so
aarch64-linux-gnu-ld start.o libg.so -o program && cfi2sframe verify program
# Prints with binutils 2.47:
#> program: 0x400260: missing: no SFrame FDE for 48 bytes of PLT stubs
