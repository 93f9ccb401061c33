# SPDX-License-Identifier: Apache-2.0
"""Why code has no rows from its instructions, as named reasons that reports count."""

from __future__ import annotations

from enum import Enum


class CodeReason(Enum):
    """Why code is not described by its instructions. The value is the text that reports print."""

    NOT_REACHED = "nothing is known to lead to it"
    NO_LOCAL_SYMBOL = "its section has no symbol that a linker can relocate by"
