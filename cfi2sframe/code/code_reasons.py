# SPDX-License-Identifier: Apache-2.0
"""Why code without CFI gets no rows from its instructions. Apart, because reports need no more of the analysis."""

from __future__ import annotations

from enum import Enum


class CodeReason(Enum):
    """Why no row is derived for some code. The value is the text that reports print."""

    NOT_REACHED = "no known entry leads there"
    NOT_CONFIRMED = "no exit confirms the stack depth"
    CONTRADICTED = "an exit contradicts the stack depth"
    PATHS_DISAGREE = "paths disagree on the stack depth"
    SP_UNKNOWN = "SP has an unknown value, and nothing else leads to the CFA"
    RA_UNKNOWN = "the RA is overwritten"
    UNKNOWN_INSTRUCTION = "an instruction whose effect is not known"
    NO_LOCAL_SYMBOL = "no local symbol gives a linker its place"
