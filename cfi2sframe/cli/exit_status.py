# SPDX-License-Identifier: Apache-2.0
"""What the program is called, and how a run of it ends."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "cfi2sframe"

EXIT_SUCCESS: Final = 0
EXIT_DIFFERENCE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 3
EXIT_INCOMPLETE: Final = 4
EXIT_UNCOMPARED: Final = 5
#: Results of a run, kept so that they need not be freed before the process ends.
KEPT: Final[list[object]] = []
