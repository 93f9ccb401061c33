# SPDX-License-Identifier: Apache-2.0
"""Compares a section with the CFI it was made from, and with what readers require; the door is `verify_section`.

Each address has a row from two independent sources: the DWARF row table, and the section's bytes, decoded again.
Nothing here knows how the section was encoded.
"""
