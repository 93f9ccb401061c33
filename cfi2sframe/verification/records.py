# SPDX-License-Identifier: Apache-2.0
"""What verification finds."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["wrong", "missing", "extra", "invariant"]


class Difference(NamedTuple):
    """Where a section does not say what it should.

    `vaddr` is an address in the code; for `invariant`, the function's start or the section's address.
    """

    kind: Kind
    vaddr: int
    message: str


class Verification(NamedTuple):
    """The outcome: how much was compared, what the version cannot say and is rightly absent, and every difference."""

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.differences
