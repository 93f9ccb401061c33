# SPDX-License-Identifier: Apache-2.0
# GNU as warns that it emits no FDE for this signal frame, but emits one without rows: in version 3 the outermost frame.
cat > signal.s << 'END'
f:	.cfi_startproc
	.cfi_signal_frame
	.cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6	# the CFA is *(rsp+160)
	nop
	.cfi_endproc
END
as --gsframe signal.s -o signal.o
readelf --sframe signal.o | grep Num
# Prints with binutils 2.47:
#> signal.s: Assembler messages:
#> signal.s: Warning: no SFrame FDE emitted; .cfi_escape with op (0xf)
#>     Num FDEs: 1
#>     Num FREs: 0
