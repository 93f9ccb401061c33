# SPDX-License-Identifier: Apache-2.0
"""The records of a stack trace: frames, the rows that were used for them, and the ways in which a trace ends.

Addresses are those of the traced process; a vaddr is one of a file, as its program headers count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import FrameState

#: Reads bytes of the traced process: (address, size) -> exactly that many bytes, or None where they cannot be had.
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
the PC. unusable-section: the section is damaged. unusable-module: the file is missing, is another one than was
mapped, or has neither SFrame nor CFI. unknown-register: a row needs a register whose value in this frame is not known.
ra-not-saved: RA is still in its register, which only the topmost frame can say. unreadable-memory: a saved value
cannot be read. stack-does-not-grow: the caller's SP is not above this one's. loop: a frame came up again. limit: there
are more frames than asked for, or than the size of the core or process allows. internal-error: a bug of this program.
"""


class Frame(NamedTuple):
    """A frame: what is known of the registers at its PC.

    `fp` is None where a callee's row does not lead to its value; only rows that are based on FP are lost then.
    `ra` is the value of the RA register (AArch64 x30, s390x r14), where the ABI has one and the value is known: in the
    topmost frame, and in one that a signal interrupted. `registers` are further known values by DWARF number. In any
    other frame both are empty. `is_return_address`: the PC is behind the call, which may be another function's start.
    """

    pc: int
    sp: int
    fp: int | None
    ra: int | None = None
    registers: Mapping[int, int] = NO_REGISTERS
    is_return_address: bool = False

    @property
    def lookup_pc(self) -> int:
        """The address to look for in tables: inside the call instruction where the PC is a return address."""
        return (self.pc - 1) & ADDRESS_MASK if self.is_return_address else self.pc


class Ending(NamedTuple):
    """Why a trace ends, and what exactly was met."""

    kind: EndingKind
    detail: str


RowSource = Literal["file", "converted", "trampoline"]


class Row(NamedTuple):
    """The row in force at a PC.

    `source` "file": from the `.sframe` of the module; "converted": from its CFI, converted in memory; "trampoline": no
    row at all, the instructions return from a signal handler and the kernel's record of the interrupted registers was
    read (`state` and `version` are None).
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

    `cfa` is None where no row led to a caller: in the last frame and at signal trampolines. `recovered` are the
    registers that the row needed and SFrame does not follow, whose values CFI led to.
    """

    frame: Frame
    located: Located
    cfa: int | None
    recovered: tuple[int, ...] = ()


class Trace(NamedTuple):
    """Frames from the innermost to the last one found, whose caller is not known for the reason that `ending` names."""

    entries: tuple[TraceEntry, ...]
    ending: Ending
