# SPDX-License-Identifier: Apache-2.0
"""Records between the stub analysis and its users. Those of its modules are in `stub_model`, which users never load."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.sframe.model import Function


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


class StubScan(NamedTuple):
    """The functions of stubs in ascending order, without overlaps, and the ranges that are left out."""

    functions: tuple[Function, ...] = ()
    left_out: tuple[StubSkip, ...] = ()


class CfiSpan(NamedTuple):
    """The CFI in force at an address: `state` (None: there is none) from that address up to `end_vaddr`."""

    end_vaddr: int
    state: RowState | None


#: Returns the CFI in force at a virtual address. The same state may continue after the end of the span.
CfiAt = Callable[[int], CfiSpan]
