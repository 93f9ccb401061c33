# SPDX-License-Identifier: Apache-2.0
"""What the stub analysis is given and what it returns; its inner records are in `stub_model`, which only it loads."""

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
    """The CFI in force at an address: `state` (None: no CFI) holds from that address to `end_vaddr`."""

    end_vaddr: int
    state: RowState | None


#: Returns the CFI in force at an address. The span may end early, but after the address.
CfiAt = Callable[[int], CfiSpan]
