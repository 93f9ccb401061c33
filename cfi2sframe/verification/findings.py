# SPDX-License-Identifier: Apache-2.0
"""What verification finds."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["wrong", "missing", "extra", "invariant"]


class Difference(NamedTuple):
    """Where a section differs from what it should contain.

    `vaddr` is an address in the code; for `invariant`, the function's start or the section's address.
    """

    kind: Kind
    vaddr: int
    message: str


class Verification(NamedTuple):
    """The result: how much was compared, how many FDEs this version cannot express, and all differences.

    `function_count` FDEs were compared at `point_count` addresses. The `left_out_count` FDEs are absent for a reason,
    which is no difference.
    """

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there are no differences."""
        return not self.differences
