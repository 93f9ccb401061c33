# SPDX-License-Identifier: Apache-2.0
"""Capstone's disassembler, the one place that imports it: when the first instruction is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import EM_AARCH64, EM_X86_64
from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from typing import Any

    from cfi2sframe.arch import Arch


def open_disassembler(arch: Arch, what: str, otherwise: str = "") -> Any:  # noqa: ANN401 - capstone has no types
    """Return a disassembler for an ABI, without details.

    Raises `InputError` where capstone cannot be loaded: the message says `what` is done with it, and what to do
    `otherwise`.
    """
    try:
        import capstone
    except ImportError:
        reason = f"{what} with the Python package capstone, which cannot be loaded"
        raise InputError(f"{reason}; {otherwise}" if otherwise else reason) from None
    if arch.elf_machine == EM_X86_64:
        return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    # The others were renamed in capstone 6.
    if arch.elf_machine == EM_AARCH64:
        # Instructions are little-endian, whatever data is.
        machine = getattr(capstone, "CS_ARCH_AARCH64", None) or capstone.CS_ARCH_ARM64
        return capstone.Cs(machine, capstone.CS_MODE_LITTLE_ENDIAN)
    machine = getattr(capstone, "CS_ARCH_SYSTEMZ", None) or capstone.CS_ARCH_SYSZ
    return capstone.Cs(machine, capstone.CS_MODE_BIG_ENDIAN)
