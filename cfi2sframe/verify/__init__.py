# SPDX-License-Identifier: Apache-2.0
"""A section against the CFI it was made from: rows (`compare`, `judge`) and what readers insist on (`invariants`)."""

from cfi2sframe.verify.compare import verify_section
from cfi2sframe.verify.invariants import check_invariants
from cfi2sframe.verify.judge import judge
from cfi2sframe.verify.records import Difference, Verification

__all__ = ["Difference", "Verification", "check_invariants", "judge", "verify_section"]
