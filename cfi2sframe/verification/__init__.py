# SPDX-License-Identifier: Apache-2.0
"""Holds a section against the CFI it was made from and against what readers require; the door is `verify_section`.

Two independent ways lead to an answer for each address: DWARF's rows, and the bytes of the section, decoded again.
Nothing here knows how the section was encoded.
"""

from cfi2sframe.verification.findings import Difference, Verification
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.verify import Truth, verify_section

__all__ = ["Difference", "Truth", "Verification", "check_invariants", "verify_section"]
