# SPDX-License-Identifier: Apache-2.0
"""The logical SFrame section: what every version says, without a width, an order or an offset.

All of SFrame's rules are one small algebra, `Rule`: a base (a DWARF register, or the CFA), an offset, and maybe a load.
Default rows say a few of them, flexible rows (version 3) nearly all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Rule(NamedTuple):
    """`value = base + offset`, or with `deref` `value = *(base + offset)`.

    The base is the CFA when `register` is None.
    """

    register: int | None
    offset: int
    deref: bool


class FrameState(NamedTuple):
    """Where CFA, RA and FP of the caller are.

    `cfa` is None in the outermost frame: RA is undefined there, nothing else counts. `ra` and `fp` are None where the
    caller's value still is in its own register.
    """

    cfa: Rule | None
    ra: Rule | None = None
    fp: Rule | None = None
    mangled_ra: bool = False


#: RA is undefined: the stack ends here.
OUTERMOST: Final = FrameState(None)


class FrameRow(NamedTuple):
    """A state that holds from `start_delta` (bytes from the function's start) to the next row or the function's end."""

    start_delta: int
    state: FrameState


class FunctionBody(NamedTuple):
    """All that an SFrame FDE says of a function but its place. Functions with equal bodies may share bytes.

    Rows as columns: `states[N]` holds from `starts[N]` (bytes from the function's start) to the next start or the
    function's end. `repeat_size` is 0 for PCINC; otherwise the FDE is PCMASK: the rows describe a block of that many
    bytes that repeats, and their starts count from each block's start.
    """

    starts: tuple[int, ...]
    states: tuple[FrameState, ...]
    is_flexible: bool = False
    is_signal_frame: bool = False
    uses_b_key: bool = False
    repeat_size: int = 0

    @property
    def rows(self) -> tuple[FrameRow, ...]:
        """The rows as records."""
        return tuple(map(FrameRow, self.starts, self.states))

    def cut(self, start_delta: int, end_delta: int) -> FunctionBody:
        """Return the rows in force in `[start_delta, end_delta)`, with starts counted from `start_delta` (PCINC)."""
        starts = self.starts
        if start_delta == 0 and starts[-1] < end_delta:
            return self
        first = bisect_right(starts, start_delta) - 1
        last = bisect_left(starts, end_delta, first + 1)
        kept = (0, *(start - start_delta for start in starts[first + 1 : last]))
        return self._replace(starts=kept, states=self.states[first:last])


class Function(NamedTuple):
    """A code range `[start_vaddr, start_vaddr + size)` and what SFrame says of it."""

    start_vaddr: int
    size: int
    body: FunctionBody


class Section(NamedTuple):
    """The logical section: version, flags that are not about layout, and its functions in the order of the table.

    Functions as columns: `bodies[N]` is what SFrame says of `[starts[N], starts[N] + sizes[N])`. `abi_id` is
    `sfh_abi_arch`. `start_is_pcrel` and `is_sorted` are the flags of those names.
    """

    version: int
    abi_id: int
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    bodies: tuple[FunctionBody, ...] = ()
    is_sorted: bool = True
    start_is_pcrel: bool = True
    all_keep_frame_pointer: bool = False

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions as records."""
        return tuple(map(Function, self.starts, self.sizes, self.bodies))

    def with_functions(self, functions: Iterable[Function]) -> Section:
        """Return the section with other functions."""
        records = tuple(functions)
        return self._replace(
            starts=tuple([function.start_vaddr for function in records]),
            sizes=tuple([function.size for function in records]),
            bodies=tuple([function.body for function in records]),
        )
