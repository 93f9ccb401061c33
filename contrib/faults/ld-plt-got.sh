# SPDX-License-Identifier: Apache-2.0
# GNU ld's rows of .plt.got have the CFA 8 bytes too high: a stub there only jumps. Functions that are both called and
# have their address taken have such stubs.
cat > taken.s << 'END'
	.globl _start
_start:	.cfi_startproc
	mov g@GOTPCREL(%rip), %rax
	call g@PLT
	ret
	.cfi_endproc
END
cat > g.s << 'END'
	.globl g
g:	.cfi_startproc
	ret
	.cfi_endproc
END
for name in taken g; do as --gsframe $name.s -o $name.o; done
ld -shared g.o -o libg.so
ld taken.o libg.so -o program
cfi2sframe verify program
# Prints with binutils 2.44 and 2.47:
#> program: 0x401010: wrong: the stub has CFA=rsp+8 RA=c-8, the row has CFA=rsp+16 RA=c-8
