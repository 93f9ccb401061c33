# SPDX-License-Identifier: Apache-2.0
"""Walk a stack from the topmost frame outwards: repeated `step`s, which always end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import EM_X86_64
from cfi2sframe.trace.frame import Ending, Frame, Located, Row, Trace, TraceEntry
from cfi2sframe.trace.sigreturn import sigreturn_frame
from cfi2sframe.trace.stepping import DEFAULT_PAC_MASK, cfa_of, step

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.trace.frame import ReadMemory

#: Returns the module and the row of an address, or an ending.
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
) -> Trace:
    """Return the frames from `frame` outwards, at most `limit` of them, and why there are no more.

    `find_row` is called once per frame, with `Frame.lookup_pc`. SP has to grow from frame to frame, except for frames
    that a signal interrupted, which may be on another stack; none of these may occur twice. So every walk ends.
    """
    entries: list[TraceEntry] = []
    interrupted: set[tuple[int, int]] = set()
    while True:
        located, caller = _caller(frame, find_row(frame.lookup_pc), read_memory, arch, pac_mask)
        cfa = cfa_of(caller, arch) if isinstance(caller, Frame) and located.row not in (None, _TRAMPOLINE) else None
        entries.append(TraceEntry(frame, located, cfa))
        if isinstance(caller, Ending):
            return Trace(tuple(entries), caller)
        if not caller.is_return_address:
            place = (caller.pc, caller.sp)
            if place in interrupted:
                return Trace(tuple(entries), Ending("loop", f"the frame at SP 0x{caller.sp:x} repeats"))
            interrupted.add(place)
        if len(entries) >= limit:
            return Trace(tuple(entries), Ending("limit", f"more than {limit:,} frames"))
        frame = caller


def _caller(
    frame: Frame, located: Located, read_memory: ReadMemory, arch: Arch, pac_mask: int
) -> tuple[Located, Frame | Ending]:
    """Return the caller, and what was used to find it: the row, or the kernel's record at a signal trampoline."""
    row = located.row
    # Rows can describe this frame on AMD64; those of other ABIs give a wrong SP.
    if row is None or row.state is None or arch.elf_machine != EM_X86_64:
        interrupted = sigreturn_frame(frame, read_memory, arch)
        if interrupted is not None:
            return located._replace(row=_TRAMPOLINE, ending=None), interrupted
    if row is None or row.state is None:
        return located, located.ending or Ending("no-row", "no row for this PC")
    caller = step(frame, row.state, read_memory, arch, is_signal_frame=row.is_signal_frame, pac_mask=pac_mask)
    if row.is_signal_frame and isinstance(caller, Frame):
        # The row gives PC, SP and FP; an interrupted prologue may need the other registers that the kernel saved.
        interrupted = sigreturn_frame(frame, read_memory, arch)
        if interrupted is not None and _registers(interrupted) == _registers(caller):
            return located, interrupted
    return located, caller


def _registers(frame: Frame) -> tuple[int, int, int | None]:
    return frame.pc, frame.sp, frame.fp
