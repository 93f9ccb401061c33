# SPDX-License-Identifier: Apache-2.0
"""Topmost frames from the kernel's register records (NT_PRSTATUS, PTRACE_GETREGSET)."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.trace.frame import Frame

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch

#: DWARF numbers in the order of struct user_regs_struct, with RA for rip; None for registers that are not used.
_AMD64_ORDER: Final = (15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, None, 16, None, None, 7)
#: Bytes that are read of the record of general registers, by ELF machine.
REGISTERS_SIZE: Final = {EM_X86_64: 20 * 8, EM_AARCH64: 33 * 8, EM_S390: 18 * 8}
#: DWARF columns 16 to 31 are these floating-point registers.
_S390X_FLOATS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
_S390X_FPREGS_SIZE: Final = 8 + 16 * 8


def topmost_frame(data: bytes, arch: Arch, float_data: bytes | None = None) -> Frame | None:
    """Return the frame of a record of general registers; None when it is too short.

    `float_data` is the record of the floating-point registers, in which s390x functions may keep RA and FP.
    """
    size = REGISTERS_SIZE[arch.elf_machine]
    if len(data) < size:
        return None
    words = struct.unpack_from(f"{arch.byte_order}{size // 8}Q", data)
    registers: dict[int, int]
    if arch.elf_machine == EM_X86_64:
        registers = {n: word for n, word in zip(_AMD64_ORDER, words, strict=True) if n is not None}
        pc, ra = registers.pop(arch.ra_register), None
    elif arch.elf_machine == EM_AARCH64:
        registers = dict(enumerate(words[:32]))
        pc, ra = words[32], registers[arch.ra_register]
    else:
        # The PSW's mask and address, then r0 to r15.
        registers = dict(enumerate(words[2:18]))
        pc, ra = words[1], registers[arch.ra_register]
        if float_data is not None and len(float_data) >= _S390X_FPREGS_SIZE:
            floats = struct.unpack_from(">16Q", float_data, 8)
            registers.update({16 + column: floats[number] for column, number in enumerate(_S390X_FLOATS)})
    return Frame(pc, registers[arch.sp_register], registers[arch.fp_register], ra, MappingProxyType(registers))
