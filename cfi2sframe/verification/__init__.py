# SPDX-License-Identifier: Apache-2.0
"""A section against the CFI it was made from: rows (`compare`, `judge`) and what readers insist on (`invariants`)."""

from cfi2sframe.verification.compare import verify_section
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.records import Difference, Verification
from cfi2sframe.verification.row_difference import judge

__all__ = ["Difference", "Verification", "check_invariants", "judge", "verify_section"]
