# SPDX-License-Identifier: Apache-2.0
"""Why code without CFI gets no rows from its instructions. Apart, because reports need no more of the analysis."""

from __future__ import annotations

from enum import Enum


class CodeReason(Enum):
    """Why no row is derived for some code. The value is the text that reports print."""

    NOT_REACHED = "no known entry leads there"
    UNKNOWN = "an instruction or a value that is not known"
    PATHS_DISAGREE = "paths disagree on the stack depth"
    NOT_PROVEN = "no return proves the stack depth"
    NO_LOCAL_SYMBOL = "no local symbol gives a linker its place"
