# SPDX-License-Identifier: Apache-2.0
"""The kernel's records of registers: of a stopped thread, and those that a signal handler returns to.

SFrame can describe a return from a signal handler on AMD64 (version 3, flexible FDEs). On AArch64 and s390x no row can
restore the interrupted SP and RA; as debuggers do, a trace relies on the record's layout, which is kernel ABI.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import S390X
from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
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

# The words of a record are DWARF's numbers of registers, or one of these.
_PC: Final = -1
_UNUSED: Final = -2

#: By ELF machine: struct user_regs_struct, user_pt_regs, s390_regs (which begins with the PSW's mask and address).
_THREAD_WORDS: Final = {
    EM_X86_64: (15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, _UNUSED, _PC, _UNUSED, _UNUSED, 7),
    EM_AARCH64: (*range(32), _PC),
    EM_S390: (_UNUSED, _PC, *range(16)),
}
#: f0 to f15, which follow the control register in struct s390_fp_regs.
_S390X_FLOATS: Final = tuple(S390X.registers.index(f"f{number}") for number in range(16))
#: By ELF machine: struct sigcontext; on s390x _sigregs, which has access registers before the floating-point ones.
_SIGNAL_WORDS: Final = {
    EM_X86_64: (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, _PC),
    EM_AARCH64: _THREAD_WORDS[EM_AARCH64],
    EM_S390: (*_THREAD_WORDS[EM_S390], *(_UNUSED,) * 9, *_S390X_FLOATS),
}
#: By ELF machine: the instructions (number of the system call, system call) that return from a handler, and where the
#: record is from SP. AMD64: the ucontext's head and stack (40). AArch64: siginfo (128), the ucontext up to its mcontext
#: (176), the fault's address. s390x: save area (160), instruction and padding (8), siginfo (128), ucontext's head (40).
_TRAMPOLINES: Final = {
    EM_X86_64: (
        (bytes.fromhex("48c7c00f0000000f05"), 40),  # mov $15, %rax; syscall
        (bytes.fromhex("b80f0000000f05"), 40),  # mov $15, %eax; syscall
    ),
    # mov x8, #139; svc #0: instructions are little-endian, whatever the data's byte order.
    EM_AARCH64: ((bytes.fromhex("681180d2010000d4"), 128 + 176 + 8),),
    EM_S390: ((b"\x0a\xad", 160 + 8 + 128 + 40),),  # svc 173
}
#: svc 119 on s390x, of a handler without SA_SIGINFO: save area (160), old mask (8), pointer to the record.
_OLD_CODE: Final = b"\x0a\x77"
_OLD_POINTER: Final = 168


class StoppedThread(NamedTuple):
    """A thread: its id, its topmost frame, and the mask of its pointer authentication codes."""

    id: int
    frame: Frame
    pac_mask: int


def stopped_thread(thread_id: int, sets: Mapping[int, bytes], arch: Arch) -> StoppedThread | None:
    """Return a thread from its register sets; None when that of the general registers is missing or too short."""
    registers = _unpack(sets.get(NT_PRSTATUS, b""), _THREAD_WORDS[arch.elf_machine], arch)
    if not registers:
        return None
    if arch.elf_machine == EM_S390:
        # Functions may keep RA and FP in floating-point registers.
        registers |= _unpack(sets.get(NT_PRFPREG, b""), (_UNUSED, *_S390X_FLOATS), arch)
    masks = sets.get(NT_ARM_PAC_MASK, b"")
    # The mask of data addresses comes first.
    pac_mask = struct.unpack_from(arch.byte_order + "QQ", masks)[1] if len(masks) >= 16 else DEFAULT_PAC_MASK
    return StoppedThread(thread_id, _frame(registers, arch), pac_mask)


def interrupted_frame(frame: Frame, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the frame that a signal interrupted, where the frame's PC is at the return from the handler.

    None where it is not, and where the kernel's record cannot be read.
    """
    words = _SIGNAL_WORDS[arch.elf_machine]
    address = _record_address(frame, read_memory, arch)
    data = None if address is None else read_memory(address, 8 * len(words))
    return None if data is None else _frame(_unpack(data, words, arch), arch)


def _record_address(frame: Frame, read_memory: ReadMemory, arch: Arch) -> int | None:
    for code, offset in _TRAMPOLINES[arch.elf_machine]:
        if read_memory(frame.pc, len(code)) == code:
            return frame.sp + offset
    if arch.elf_machine == EM_S390 and read_memory(frame.pc, len(_OLD_CODE)) == _OLD_CODE:
        pointer = read_memory(frame.sp + _OLD_POINTER, 8)
        return None if pointer is None else int.from_bytes(pointer, "big")
    return None


def _unpack(data: bytes, numbers: Sequence[int], arch: Arch) -> dict[int, int]:
    """Return the words of a record by their numbers; none when it is too short."""
    form = struct.Struct(f"{arch.byte_order}{len(numbers)}Q")
    return dict(zip(numbers, form.unpack_from(data), strict=True)) if len(data) >= form.size else {}


def _frame(words: dict[int, int], arch: Arch) -> Frame:
    registers = MappingProxyType({number: word for number, word in words.items() if number >= 0})
    ra = None if arch.fixed_ra_offset else registers[arch.ra_register]
    return Frame(words[_PC], registers[arch.sp_register], registers[arch.fp_register], ra, registers)
