# SPDX-License-Identifier: Apache-2.0
# lld writes the sections of objects one after the other, each with its header, and no PT_GNU_SFRAME. A reader that
# finds the section by its name sees the functions of the first object only.
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
for name in start g; do as $name.s -o $name.o; cfi2sframe $name.o -o $name.2.o --sframe-version 2; done
ld.lld start.2.o g.2.o -o program
readelf -lW program | grep -c GNU_SFRAME
readelf -x .sframe program | grep -c 'e2de02'
# Prints with ld.lld 14:
#> 0
#> 2
