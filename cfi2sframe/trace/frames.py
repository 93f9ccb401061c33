# SPDX-License-Identifier: Apache-2.0
"""Frames of a trace, and the kernel's records of registers: of a stopped thread, and of what a signal interrupted.

Addresses are those of the traced process. SFrame can describe a return from a signal handler on AMD64 (version 3,
flexible FDEs). On AArch64 and s390x no row can restore the interrupted SP and RA; as debuggers do, a trace relies on
the record's layout, which is kernel ABI (`abi`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.abi.record import SAVED_PC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.sframe.model import Found

#: Reads bytes of the traced process: (address, size) -> exactly that many bytes, or None when they cannot be read.
ReadMemory = Callable[[int, int], bytes | None]

_NO_REGISTERS: Final[Mapping[int, int]] = MappingProxyType({})
ADDRESS_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
#: The bits of a signed AArch64 address that hold its authentication code, where the process does not give the mask:
#: user addresses have 48 bits.
DEFAULT_PAC_MASK: Final = 0xFFFF_0000_0000_0000

#: Types of notes in cores, which are also those of ptrace's register sets.
NT_PRSTATUS: Final = 1
NT_PRFPREG: Final = 2
NT_ARM_PAC_MASK: Final = 0x406

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
    registers: Mapping[int, int] = _NO_REGISTERS
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
    """A frame of a trace, and its row, None where there is none.

    `cfa` is None where no row was used to find a caller: in the last frame and at signal trampolines.
    """

    frame: Frame
    row: Row | None = None
    cfa: int | None = None


class Trace(NamedTuple):
    """Frames from the innermost to the last one found, whose caller is not known for the reason that `ending` names.

    `thread_id` is the kernel's, 0 where only a frame was given.
    """

    entries: tuple[TraceEntry, ...]
    ending: Ending
    thread_id: int = 0


class StoppedThread(NamedTuple):
    """A thread: its id, its topmost frame, and the mask of its pointer authentication codes."""

    id: int
    frame: Frame
    pac_mask: int


def stopped_thread(thread_id: int, notes: Mapping[int, bytes], arch: Arch) -> StoppedThread | None:
    """Return a thread from its sets of registers; None when that of the general ones is missing or too short."""
    registers = _words(notes.get(NT_PRSTATUS, b""), arch.thread_words, arch)
    if not registers:
        return None
    registers |= _words(notes.get(NT_PRFPREG, b""), arch.float_words, arch)
    # The masks of data and of code addresses.
    masks = notes.get(NT_ARM_PAC_MASK, b"")
    pac_mask = struct.unpack_from(arch.byte_order + "QQ", masks)[1] if len(masks) >= 16 else DEFAULT_PAC_MASK
    return StoppedThread(thread_id, _frame(registers, arch), pac_mask)


def interrupted_frame(frame: Frame, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the frame that a signal interrupted, where the frame's PC is at the return from the handler.

    None where it is not, and where the kernel's record cannot be read.
    """
    for code, distance, is_pointer in arch.signal_returns:
        if read_memory(frame.pc, len(code)) == code:
            address = frame.sp + distance
            if is_pointer:
                pointer = read_memory(address, 8)
                if pointer is None:
                    return None
                (address,) = struct.unpack(arch.byte_order + "Q", pointer)
            words = _words(read_memory(address, 8 * len(arch.signal_words)) or b"", arch.signal_words, arch)
            return _frame(words, arch) if words else None
    return None


def _words(data: bytes, numbers: Sequence[int], arch: Arch) -> dict[int, int]:
    """Return the words of a record by their numbers; none when it is too short."""
    form = struct.Struct(f"{arch.byte_order}{len(numbers)}Q")
    return dict(zip(numbers, form.unpack_from(data), strict=True)) if len(data) >= form.size else {}


def _frame(words: dict[int, int], arch: Arch) -> Frame:
    registers = MappingProxyType({number: word for number, word in words.items() if number >= 0})
    ra = None if arch.fixed_ra_offset else registers[arch.ra_register]
    return Frame(words[SAVED_PC], registers[arch.sp_register], registers[arch.fp_register], ra, registers)
