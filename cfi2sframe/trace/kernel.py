# SPDX-License-Identifier: Apache-2.0
"""The kernel's records of registers: of a stopped thread, and those that a signal handler returns to.

SFrame can describe a return from a signal handler on AMD64 (version 3, flexible FDEs). On AArch64 and s390x no row can
restore the interrupted SP and RA; as debuggers do, a trace relies on the record's layout, which is kernel ABI (`abi`).
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.trace.frames import DEFAULT_PAC_MASK, Frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.trace.frames import ReadMemory

#: Types of notes, which are also those of ptrace's register sets.
NT_PRSTATUS: Final = 1
NT_PRFPREG: Final = 2
NT_ARM_PAC_MASK: Final = 0x406
REGISTER_SETS: Final = (NT_PRSTATUS, NT_PRFPREG, NT_ARM_PAC_MASK)


class StoppedThread(NamedTuple):
    """A thread: its id, its topmost frame, and the mask of its pointer authentication codes."""

    id: int
    frame: Frame
    pac_mask: int


def stopped_thread(thread_id: int, sets: Mapping[int, bytes], arch: Arch) -> StoppedThread | None:
    """Return a thread from its register sets; None when that of the general registers is missing or too short."""
    registers = _unpack(sets.get(NT_PRSTATUS, b""), arch.thread_words, arch)
    if not registers:
        return None
    registers |= _unpack(sets.get(NT_PRFPREG, b""), arch.float_words, arch)
    masks = sets.get(NT_ARM_PAC_MASK, b"")
    # The mask of data addresses comes first.
    pac_mask = struct.unpack_from(arch.byte_order + "QQ", masks)[1] if len(masks) >= 16 else DEFAULT_PAC_MASK
    return StoppedThread(thread_id, _frame(registers, arch), pac_mask)


def interrupted_frame(frame: Frame, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the frame that a signal interrupted, where the frame's PC is at the return from the handler.

    None where it is not, and where the kernel's record cannot be read.
    """
    for code, distance, is_pointer in arch.signal_returns:
        if read_memory(frame.pc, len(code)) != code:
            continue
        address = frame.sp + distance
        if is_pointer:
            pointer = read_memory(address, 8)
            if pointer is None:
                return None
            (address,) = struct.unpack(arch.byte_order + "Q", pointer)
        data = read_memory(address, 8 * len(arch.signal_words))
        return None if data is None else _frame(_unpack(data, arch.signal_words, arch), arch)
    return None


def _unpack(data: bytes, numbers: Sequence[int], arch: Arch) -> dict[int, int]:
    """Return the words of a record by their numbers; none when it is too short."""
    form = struct.Struct(f"{arch.byte_order}{len(numbers)}Q")
    return dict(zip(numbers, form.unpack_from(data), strict=True)) if len(data) >= form.size else {}


def _frame(words: dict[int, int], arch: Arch) -> Frame:
    registers = MappingProxyType({number: word for number, word in words.items() if number >= 0})
    ra = None if arch.fixed_ra_offset else registers[arch.ra_register]
    return Frame(words[SAVED_PC], registers[arch.sp_register], registers[arch.fp_register], ra, registers)
