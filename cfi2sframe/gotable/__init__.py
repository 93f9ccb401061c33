# SPDX-License-Identifier: Apache-2.0
"""The table of functions that Go's linker writes: `.gopclntab`, which strip keeps.

In: its bytes. Out: the same as CFI, in the FDEs and rows of `dwarf/`. Nothing here depends on SFrame.
"""
