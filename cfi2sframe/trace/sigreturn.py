# SPDX-License-Identifier: Apache-2.0
"""Signal trampolines, recognised by their instructions, and the kernel's record of the interrupted registers.

SFrame can describe such a frame on AMD64 (version 3, flexible FDEs). On AArch64 and s390x no row can restore the
interrupted SP and RA; as debuggers do, this module relies on the record's layout, which is kernel ABI.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.trace.frame import Frame

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.trace.frame import ReadMemory


class _Record(NamedTuple):
    """The offsets of the interrupted registers from SP at the trampoline: PC, then registers by DWARF number."""

    pc_offset: int
    register_offsets: tuple[tuple[int, int], ...]


# struct ucontext at SP: flags and link (16), stack (24), then r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
_AMD64: Final = _Record(
    168,
    tuple(
        (number, 40 + 8 * place) for place, number in enumerate((8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7))
    ),
)
# struct rt_sigframe at SP: siginfo (128), ucontext with its mcontext 176 further on: fault address, x0 to x30, sp, pc.
_AARCH64: Final = _Record(568, tuple((number, 312 + 8 * number) for number in range(32)))

_S390X_FLOATS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
#: In _sigregs: psw mask and address, r0 to r15, access registers (64), fpc (8 with padding), f0 to f15.
_S390X_REGISTERS: Final = (
    *((number, 16 + 8 * number) for number in range(16)),
    *((16 + column, 216 + 8 * number) for column, number in enumerate(_S390X_FLOATS)),
)


def _s390x(start: int) -> _Record:
    return _Record(start + 8, tuple((number, start + offset) for number, offset in _S390X_REGISTERS))


# rt_sigframe at SP: 160 of register save area, 8 of instruction and padding, siginfo (128), ucontext's head (40).
_S390X_RT: Final = _s390x(160 + 8 + 128 + 40)

#: Instructions (system call number, system call), by ELF machine.
_AMD64_CODES: Final = (
    bytes.fromhex("48c7c00f0000000f05"),  # mov $15, %rax; syscall
    bytes.fromhex("b80f0000000f05"),  # mov $15, %eax; syscall
)
_AARCH64_CODE: Final = struct.pack("<II", 0xD2801168, 0xD4000001)  # mov x8, #139; svc #0
_S390X_RT_CODE: Final = b"\x0a\xad"  # svc 173
_S390X_CODE: Final = b"\x0a\x77"  # svc 119


def sigreturn_frame(frame: Frame, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the interrupted frame when the frame's PC is at a return from a signal handler; None when it is not.

    All of the interrupted frame's registers are known. None also where the record cannot be read.
    """
    record = _record(frame, read_memory, arch)
    if record is None:
        return None
    words: dict[int, int] = {}
    form = struct.Struct(arch.byte_order + "Q")
    for number, offset in (*record.register_offsets, (-1, record.pc_offset)):
        data = read_memory(frame.sp + offset, 8)
        if data is None:
            return None
        words[number] = form.unpack(data)[0]
    pc = words.pop(-1)
    ra = None if arch.fixed_ra_offset else words[arch.ra_register]
    return Frame(pc, words[arch.sp_register], words[arch.fp_register], ra, MappingProxyType(words))


def _record(frame: Frame, read_memory: ReadMemory, arch: Arch) -> _Record | None:
    """Return where the record is when the instructions at the PC are a trampoline's."""
    if arch.elf_machine == EM_X86_64:
        matches = any(read_memory(frame.pc, len(code)) == code for code in _AMD64_CODES)
        return _AMD64 if matches else None
    if arch.elf_machine == EM_AARCH64:
        # Instructions are little-endian, whatever the data's byte order.
        return _AARCH64 if read_memory(frame.pc, len(_AARCH64_CODE)) == _AARCH64_CODE else None
    if arch.elf_machine == EM_S390:
        code = read_memory(frame.pc, 2)
        if code == _S390X_RT_CODE:
            return _S390X_RT
        if code == _S390X_CODE:
            # struct sigframe: save area (160), old mask (8), pointer to the registers.
            pointer = read_memory(frame.sp + 168, 8)
            return None if pointer is None else _s390x(int.from_bytes(pointer, "big") - frame.sp)
    return None
