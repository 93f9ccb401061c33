# SPDX-License-Identifier: Apache-2.0
"""PLT stubs. The door is `scan`; here are the records that other packages see, because most files need no more.

In: a linked file. Out: the places of its stubs (`places`), and their rows, from their instructions (`frames`); blocks
that repeat become one PCMASK function. Nothing here reads CFI.
"""

from typing import NamedTuple

from cfi2sframe.sframe.model import Function
from cfi2sframe.why import Reason


class StubSkip(NamedTuple):
    """A range of stubs that is left out: `size` bytes at the virtual address `start_vaddr`, the reason and its details.

    `section_name` is the stub section's, or `segment N` in a file without section headers.
    """

    start_vaddr: int
    size: int
    section_name: str
    reason: Reason
    detail: str


class StubScan(NamedTuple):
    """The functions of stubs in ascending order, without overlaps, and the ranges that are left out."""

    functions: tuple[Function, ...] = ()
    left_out: tuple[StubSkip, ...] = ()
