# SPDX-License-Identifier: Apache-2.0
"""What is derived from instructions. Apart from the analysis, which users of these records need not load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.code.code_reasons import CodeReason
    from cfi2sframe.dwarf.rules import UnwindTable


class DerivedFunction(NamedTuple):
    """The rows of the code at the virtual addresses `[start_vaddr, end_vaddr)`.

    `table` begins at `start_vaddr`. `uses_b_key`: the RA is signed with key B (AArch64).
    """

    start_vaddr: int
    end_vaddr: int
    table: UnwindTable
    uses_b_key: bool


class Underived(NamedTuple):
    """Code at the virtual addresses `[start_vaddr, end_vaddr)` for which there are no rows, and why."""

    start_vaddr: int
    end_vaddr: int
    reason: CodeReason
    detail: str


class Derived(NamedTuple):
    """The functions with rows, ascending and without overlaps, and the code without any, ascending."""

    functions: tuple[DerivedFunction, ...]
    left_out: tuple[Underived, ...]
