# SPDX-License-Identifier: Apache-2.0
"""DWARF call frame information (DWARF 5, 6.4; for `.eh_frame`, the LSB); start at `fdes`.

In: the bytes of `.eh_frame` or `.debug_frame`. Out: CIEs and FDEs (`entries`), and the rows that their instructions
make (`row_machine`): from an address on, a rule for the CFA and one for each register. A damaged entry fails alone,
with its reason. Nothing here knows what SFrame can express.
"""
