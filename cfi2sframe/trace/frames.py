# SPDX-License-Identifier: Apache-2.0
"""The records of a trace. Addresses are those of the traced process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.sframe.model import Found

#: Reads bytes of the traced process: (address, size) -> exactly that many bytes, or None when they cannot be read.
ReadMemory = Callable[[int, int], bytes | None]

NO_REGISTERS: Final[Mapping[int, int]] = MappingProxyType({})
ADDRESS_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
DEFAULT_LIMIT: Final = 100_000
#: The bits of a signed AArch64 address that hold its authentication code, where the process does not give the mask:
#: user addresses have 48 bits.
DEFAULT_PAC_MASK: Final = 0xFFFF_0000_0000_0000

#: Why a trace ends, for programs; docs/trace.md has what each means.
ENDINGS: Final = (
    *("outermost", "no-module", "no-row", "unusable-section", "unusable-module", "unknown-register"),
    *("ra-not-saved", "unreadable-memory", "stack-does-not-grow", "loop", "limit", "internal-error"),
)


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
    """Why a trace ends: one of `ENDINGS`, and the details for a message."""

    kind: str
    detail: str


class Row(NamedTuple):
    """What finds a frame's caller.

    `source` "file": a row of the module's `.sframe`; "converted": a row of its CFI, converted in memory; "trampoline":
    no row (`found` is None), but the kernel's record of the registers that a signal interrupted.
    """

    source: Literal["file", "converted", "trampoline"]
    found: Found | None


class TraceEntry(NamedTuple):
    """A frame of a trace; `module` is None where no file is known.

    `cfa` is None where no row was used to find a caller: in the last frame and at signal trampolines.
    """

    frame: Frame
    module: str | None
    row: Row | None
    cfa: int | None


class Trace(NamedTuple):
    """Frames from the innermost to the last one found, whose caller is not known for the reason that `ending` names."""

    entries: tuple[TraceEntry, ...]
    ending: Ending
