# SPDX-License-Identifier: Apache-2.0
# readelf -wF prints no row for an FDE without instructions, though the CIE's apply.
cat > g.s << 'END'
g:	.cfi_startproc
	ret
	.cfi_endproc
END
as g.s -o g.o
readelf -wF g.o | sed -n '/FDE/,$p'
# Prints with binutils 2.40, 2.44 and 2.47:
#> 00000018 0000000000000014 0000001c FDE cie=00000000 pc=0000000000000000..0000000000000001
#>
