# SPDX-License-Identifier: Apache-2.0
"""What the analysis says of code: functions with their rows, and stretches without, each with a reason."""

from __future__ import annotations

from typing import NamedTuple

from cfi2sframe.code.code_reasons import CodeReason  # noqa: TC001 - part of a NamedTuple's fields
from cfi2sframe.dwarf.rules import UnwindTable  # noqa: TC001 - part of a NamedTuple's fields


class DerivedFunction(NamedTuple):
    """Code at the virtual addresses `[start_vaddr, end_vaddr)`, a function or a part of one, and its rows.

    `uses_b_key`: where the RA is signed, it is with the B key (AArch64).
    """

    start_vaddr: int
    end_vaddr: int
    table: UnwindTable
    uses_b_key: bool = False


class Underived(NamedTuple):
    """Code at the virtual addresses `[start_vaddr, end_vaddr)` for which the instructions give no rows, and why."""

    start_vaddr: int
    end_vaddr: int
    reason: CodeReason


class Derived(NamedTuple):
    """The functions derived and the code left out, both ascending; together they hold all code that was asked for."""

    functions: tuple[DerivedFunction, ...] = ()
    left_out: tuple[Underived, ...] = ()
