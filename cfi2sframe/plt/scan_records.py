# SPDX-License-Identifier: Apache-2.0
"""Records between the stub analysis and its users. Those of its modules are in `stub_model`, which users never load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.plt.stub_reasons import StubSkip
    from cfi2sframe.sframe.model import Function


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
