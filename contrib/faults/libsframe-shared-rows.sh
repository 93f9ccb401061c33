# SPDX-License-Identifier: Apache-2.0
# A function has its rows by offset and number, so equal rows can be stored once. libsframe swaps rows of the other byte
# order in place, function by function: shared ones twice.
cat > two.s << 'END'
f:	.cfi_startproc
	br %r14
	.cfi_endproc
h:	.cfi_startproc
	br %r14
	.cfi_endproc
END
s390x-linux-gnu-as two.s -o two.o && s390x-linux-gnu-ld -shared two.o -o two
for level in 0 1; do cfi2sframe two -o two.$level -O $level; cfi2sframe verify two.$level; done
readelf --sframe two.0 | grep -c 'func idx'
readelf --sframe two.1 2>&1 | grep Error
# Prints with binutils 2.47:
#> 2
#> readelf: Error: SFrame decode failure: Buffer does not contain SFrame data.
