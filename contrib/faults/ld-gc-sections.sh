# SPDX-License-Identifier: Apache-2.0
# With --gc-sections GNU ld writes no rows for PLT stubs.
cat > start.s << 'END'
	.globl _start
_start:	.cfi_startproc
	call g
	ret
	.cfi_endproc
END
cat > g.s << 'END'
	.globl g
g:	.cfi_startproc
	ret
	.cfi_endproc
END
for name in start g; do as --gsframe $name.s -o $name.o; done
ld -shared g.o -o libg.so
ld start.o libg.so -o program && cfi2sframe verify program
ld --gc-sections start.o libg.so -o program && cfi2sframe verify program
# Prints with binutils 2.47:
#> program: 0x401000: missing: no SFrame FDE for 32 bytes of PLT stubs
