# SPDX-License-Identifier: Apache-2.0
# GNU ld rightly ignores sections of version 2, but leaves a section of 0 bytes, without a header.
cat > start.s << 'END'
	.globl _start
_start:	.cfi_startproc
	ret
	.cfi_endproc
END
as start.s -o start.o
cfi2sframe start.o -o start.2.o --sframe-version 2
ld start.2.o -o program 2>&1 | sed 's/^[^:]*: //'
readelf -SW program | grep sframe
# Prints with binutils 2.47:
#> error in start.2.o(.sframe); unexpected SFrame format version 2
#> error in start.2.o(.sframe); SFrame section ignored
#>   [ 3] .sframe           GNU_SFRAME      0000000000402030 002030 000000 00   A  0   0  8
