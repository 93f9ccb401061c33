# SPDX-License-Identifier: Apache-2.0
"""One module for each ABI, with one record of what differs, and the places of the rest.

the ABI, its registers, relocations, padding, the kernel's records of registers     abi/NAME.py
effects of instructions; registers that calls change; capstone's names              instructions/NAME.py
instructions that refer to other code and data, in forms that linkers relax         elf/referrers.py
padding and PLT stubs once more, by evidence of the judge's own                     verification/code.py
for which ABIs a reader of SFrame is written                                        verification/readers.py

Register numbers are DWARF's; offsets are bytes from the CFA.
"""

from typing import Final

from cfi2sframe.abi.aarch64 import AARCH64_BE, AARCH64_LE
from cfi2sframe.abi.amd64 import AMD64
from cfi2sframe.abi.record import Arch
from cfi2sframe.abi.s390x import S390X

ARCHES: Final = (AMD64, AARCH64_LE, AARCH64_BE, S390X)

__all__ = ["AARCH64_BE", "AARCH64_LE", "AMD64", "ARCHES", "S390X", "Arch", "arch_of_abi", "arch_of_elf"]


def arch_of_elf(machine: int, byte_order: str) -> Arch | None:
    """Return the ABI of an ELF machine and byte order, or None when SFrame has none for it."""
    return next((arch for arch in ARCHES if (arch.elf_machine, arch.byte_order) == (machine, byte_order)), None)


def arch_of_abi(abi_id: int) -> Arch | None:
    """Return the ABI that `sfh_abi_arch` names, or None for an unknown one."""
    return next((arch for arch in ARCHES if arch.abi_id == abi_id), None)
