# SPDX-License-Identifier: Apache-2.0
"""The records of a stack trace: frames, the rows that were used for them, and the ways in which a trace ends.

Addresses are those of the traced process; a vaddr is a virtual address of a file, as in its program headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.printable import counted

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import FrameState

#: Reads bytes of the traced process: (address, size) -> exactly that many bytes, or None when they cannot be read.
ReadMemory = Callable[[int, int], bytes | None]

NO_REGISTERS: Final[Mapping[int, int]] = MappingProxyType({})

ADDRESS_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

EndingKind = Literal[
    "outermost",
    "no-module",
    "no-row",
    "unusable-section",
    "unusable-module",
    "unknown-register",
    "ra-not-saved",
    "unreadable-memory",
    "stack-does-not-grow",
    "loop",
    "limit",
    "internal-error",
]
"""Why a trace ends.

outermost: RA is undefined, or 0. no-module: no file is mapped at the PC. no-row: the module's section has no row for
the PC. unusable-section: the section is damaged. unusable-module: the file is missing, differs from the one that
was mapped, or has neither SFrame nor CFI. unknown-register: a row needs a register whose value in this frame is not
known. ra-not-saved: RA is in its register, whose value is known in the topmost frame only. unreadable-memory: a saved
value cannot be read. stack-does-not-grow: the caller's SP is not above this one's. loop: a frame repeats. limit: there
are more frames than asked for, or than the size of the core or process allows. internal-error: a bug of this program.
"""


class Frame(NamedTuple):
    """A frame: the known registers at its PC.

    `fp` is None when a callee's row does not give its value; then only rows that are based on FP cannot be used.
    `ra` is the value of the RA register (AArch64 x30, s390x r14), where the ABI has one and the value is known: in the
    topmost frame, and in one that a signal interrupted. `registers` are further known values by DWARF number. In any
    other frame both are empty. `is_return_address`: the PC follows the call, and may be the start of another function.
    """

    pc: int
    sp: int
    fp: int | None
    ra: int | None = None
    registers: Mapping[int, int] = NO_REGISTERS
    is_return_address: bool = False

    def __repr__(self) -> str:
        known = {"pc": self.pc, "sp": self.sp, "fp": self.fp, "ra": self.ra}
        return " ".join(f"{name}=0x{value:x}" for name, value in known.items() if value is not None)

    @property
    def lookup_pc(self) -> int:
        """The address to look for in tables: inside the call instruction where the PC is a return address."""
        return (self.pc - 1) & ADDRESS_MASK if self.is_return_address else self.pc


class Ending(NamedTuple):
    """Why a trace ends, and the details for a message."""

    kind: EndingKind
    detail: str

    def __repr__(self) -> str:
        return f"<Ending {self.kind}: {self.detail}>"


RowSource = Literal["file", "converted", "trampoline"]


class Row(NamedTuple):
    """The row in force at a PC.

    `source` "file": from the `.sframe` of the module; "converted": from its CFI, converted in memory; "trampoline": no
    row, the instructions return from a signal handler and the interrupted registers were read from the kernel's record
    (`state` and `version` are None).
    """

    state: FrameState | None
    source: RowSource
    version: int | None
    is_flexible: bool = False
    is_pcmask: bool = False
    is_signal_frame: bool = False


class Located(NamedTuple):
    """What is known of an address: its module, the address in the module's file, its row, or why there is none."""

    module: str | None
    vaddr: int | None
    row: Row | None
    ending: Ending | None = None


class TraceEntry(NamedTuple):
    """A frame of a trace.

    `cfa` is None where no row was used to find a caller: in the last frame and at signal trampolines.
    """

    frame: Frame
    located: Located
    cfa: int | None

    def __repr__(self) -> str:
        return f"<{self.frame} in {self.located.module or 'no module'}>"


class Trace(NamedTuple):
    """Frames from the innermost to the last one found, whose caller is not known for the reason that `ending` names."""

    entries: tuple[TraceEntry, ...]
    ending: Ending

    def __repr__(self) -> str:
        return f"<Trace: {counted(len(self.entries), 'frame')}, end: {self.ending.kind}>"
