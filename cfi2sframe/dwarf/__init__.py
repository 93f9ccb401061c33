# SPDX-License-Identifier: Apache-2.0
"""DWARF call frame information (DWARF 5, 6.4; for `.eh_frame`, the LSB). The door is `programs`.

In: the bytes of `.eh_frame` or `.debug_frame`. Out: CIEs and FDEs (`entries`), and the rows that their instructions
make (`machine`): from an address on, a rule for the CFA and one for each register. What is damaged fails alone, with
its reason. Nothing here knows SFrame: a rule that it cannot express is a rule like any other.
"""
