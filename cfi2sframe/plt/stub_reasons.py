# SPDX-License-Identifier: Apache-2.0
"""Why stubs are left out. Apart from `scan_records`, because a conversion without stubs need not load it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class StubReason(Enum):
    """Why stubs are left out. The value is the text that reports print."""

    NOT_IN_FILE = "its bytes are not in the file"
    NO_INSTRUCTION = "bytes that are no instruction"
    UNKNOWN_INSTRUCTION = "an instruction whose effect on the stack is not known"
    MIXED_BLOCKS = "no block of one size repeats"
    OVERLAP = "stub sections overlap"
    JUMP_INTO_INSTRUCTION = "a jump into the middle of an instruction"
    CALL_OUTSIDE = "a call of code that is no stub"
    UNBALANCED = "more is popped than was pushed"
    DEPTH_CONFLICT = "code that is reached with different stack depths"
    NEVER_REACHED = "code that no stub reaches"
    ENTRY_UNKNOWN = "nothing is known to enter it"
    CFI_DIFFERS = "the CFI has another frame"
    CFI_EXPRESSION = "the CFI's expression cannot be evaluated"
    VERSION_1_MASK = "version 1's mask test cannot express where the rows start"


class StubSkip(NamedTuple):
    """A range of stubs that is left out: `size` bytes at the virtual address `start_vaddr`, the reason, its details.

    `section_name` is the stub section's, or `segment N` in a file without section headers.
    """

    start_vaddr: int
    size: int
    section_name: str
    reason: StubReason
    detail: str

    @property
    def overrides_cfi(self) -> bool:
        """Whether the instructions contradict the CFI, which then holds no address of the range."""
        return self.reason is StubReason.CFI_DIFFERS
