# SPDX-License-Identifier: Apache-2.0
"""Code that gets no rows from its instructions, and why."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CodeReason(Enum):
    """Why code without CFI gets no rows from its instructions. The value is the text that reports print."""

    NOT_REACHED = "no known entry leads there"
    UNKNOWN = "an instruction or a value that is not known"
    PATHS_DISAGREE = "paths disagree on the stack depth"
    NOT_PROVEN = "no return proves the stack depth"
    NO_LOCAL_SYMBOL = "no local symbol gives a linker its place"


class Underived(NamedTuple):
    """Code at the virtual addresses `[start_vaddr, end_vaddr)` for which the instructions give no rows, and why."""

    start_vaddr: int
    end_vaddr: int
    reason: CodeReason
