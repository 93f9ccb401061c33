# SPDX-License-Identifier: Apache-2.0
"""What verification finds."""

from __future__ import annotations

from typing import Literal, NamedTuple

from cfi2sframe.printable import counted

Kind = Literal["wrong", "missing", "extra", "invariant"]


class Difference(NamedTuple):
    """Where a section differs from what it should contain.

    `vaddr` is a virtual address in the code; of an `invariant`, the function's start or the section's address. `wrong`:
    a row or an attribute differs. `missing`: there is no function, though the version can express it. `extra`: neither
    CFI nor stubs describe the address. `invariant`: readers require something else.
    """

    kind: Kind
    vaddr: int
    message: str

    def __repr__(self) -> str:
        return f"0x{self.vaddr:x}: {self.kind}: {self.message}"


class Verification(NamedTuple):
    """The result: how much was compared, and all differences.

    `function_count` FDEs, without those of PLT stubs, were compared at `point_count` addresses. `left_out_count` FDEs
    are absent, or in part, because the version cannot express them, which is no difference. Not `is_compared`: the
    file has no CFI for its section, and only what readers require was checked.
    """

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]
    is_compared: bool = True

    def __repr__(self) -> str:
        found = counted(len(self.differences), "difference") if self.differences else "no difference"
        return f"<Verification: {found}, {counted(self.function_count, 'FDE')} at {self.point_count:,} addresses>"

    @property
    def is_clean(self) -> bool:
        """Whether the section was compared and there are no differences."""
        return self.is_compared and not self.differences
