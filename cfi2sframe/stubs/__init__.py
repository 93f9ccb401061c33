# SPDX-License-Identifier: Apache-2.0
"""PLT stubs. The door is `scan`; here is what other packages see of them, because most files need no more.

In: a linked file. Out: where its stubs are (`places`), and their rows, from their instructions (`frames`); blocks that
repeat become one PCMASK function. Nothing here knows the CFI.
"""

from enum import Enum
from typing import NamedTuple

from cfi2sframe.sframe.model import Function


class StubReason(Enum):
    """Why stubs are left out. The value is the text that reports print."""

    NOT_IN_FILE = "its bytes are not in the file"
    OVERLAP = "stub sections overlap"
    UNKNOWN_INSTRUCTION = "an instruction whose effect on the stack is not known"
    DEPTH_CONFLICT = "code that is reached with different stack depths"
    ENTRY_UNKNOWN = "nothing is known to enter it"
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


class StubScan(NamedTuple):
    """The functions of stubs in ascending order, without overlaps, and the ranges that are left out."""

    functions: tuple[Function, ...] = ()
    left_out: tuple[StubSkip, ...] = ()
