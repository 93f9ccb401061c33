# SPDX-License-Identifier: Apache-2.0
"""From the topmost frame to the last that can be found: `step` over and over, with an end in every case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import EM_X86_64
from cfi2sframe.errors import BudgetError
from cfi2sframe.trace.callee_saved import CalleeSaved, recovered
from cfi2sframe.trace.frame import Ending, Frame, Located, Row, Trace, TraceEntry
from cfi2sframe.trace.sigreturn import sigreturn_frame
from cfi2sframe.trace.stepping import DEFAULT_PAC_MASK, cfa_of, step

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.trace.callee_saved import SavedRule
    from cfi2sframe.trace.frame import ReadMemory

#: Says what is known of an address: its module and its row, or an ending.
FindRow = Callable[[int], Located]

DEFAULT_LIMIT: Final = 100_000

_TRAMPOLINE: Final = Row(None, "trampoline", None, is_signal_frame=True)


def walk(
    frame: Frame,
    find_row: FindRow,
    read_memory: ReadMemory,
    arch: Arch,
    *,
    limit: int = DEFAULT_LIMIT,
    pac_mask: int = DEFAULT_PAC_MASK,
    saved_rule: SavedRule | None = None,
) -> Trace:
    """Return the frames from `frame` outwards, at most `limit` of them, and why there are no more.

    `find_row` is asked for `Frame.lookup_pc`, once per frame. SP has to grow from frame to frame, but for those that
    signals interrupted, which may be on another stack; of these, none may come up twice. So every walk ends.
    `saved_rule` makes up for registers that SFrame does not follow, see `callee_saved`; None: rows alone count.
    Either may raise `BudgetError`, which ends the trace.
    """
    entries: list[TraceEntry] = []
    interrupted: set[tuple[int, int]] = set()
    while True:
        try:
            located = find_row(frame.lookup_pc)
            located, caller = _caller(frame, located, read_memory, arch, pac_mask)
        except BudgetError as error:
            entries.append(TraceEntry(frame, Located(None, None, None), None))
            plural = "s" if len(entries) > 1 else ""
            return Trace(tuple(entries), Ending("limit", f"after {len(entries):,} frame{plural}: {error}"))
        cfa = cfa_of(caller, arch) if isinstance(caller, Frame) and located.row not in (None, _TRAMPOLINE) else None
        entries.append(TraceEntry(frame, located, cfa, recovered(frame)))
        if isinstance(caller, Ending):
            return Trace(tuple(entries), caller)
        if not caller.is_return_address:
            place = (caller.pc, caller.sp)
            if place in interrupted:
                return Trace(tuple(entries), Ending("loop", f"the frame at SP 0x{caller.sp:x} comes up again"))
            interrupted.add(place)
        if len(entries) >= limit:
            return Trace(tuple(entries), Ending("limit", f"more than {limit:,} frames"))
        if saved_rule is not None and not caller.registers:
            caller = caller._replace(registers=CalleeSaved(entries[-1], saved_rule, read_memory, arch))
        frame = caller


def _caller(
    frame: Frame, located: Located, read_memory: ReadMemory, arch: Arch, pac_mask: int
) -> tuple[Located, Frame | Ending]:
    """Return the caller, and what was used to find it: the row, or what the kernel left for the trampoline."""
    row = located.row
    # AMD64's rows can say this frame; those of other ABIs give a wrong SP.
    if row is None or row.state is None or arch.elf_machine != EM_X86_64:
        interrupted = sigreturn_frame(frame, read_memory, arch)
        if interrupted is not None:
            return located._replace(row=_TRAMPOLINE, ending=None), interrupted
    if row is None or row.state is None:
        return located, located.ending or Ending("no-row", "no row for this PC")
    caller = step(frame, row.state, read_memory, arch, is_signal_frame=row.is_signal_frame, pac_mask=pac_mask)
    if row.is_signal_frame and isinstance(caller, Frame):
        # The row says PC, SP and FP; what the kernel saved of the other registers serves an interrupted prologue.
        interrupted = sigreturn_frame(frame, read_memory, arch)
        if interrupted is not None and interrupted[:3] == caller[:3]:
            return located, interrupted
    return located, caller
