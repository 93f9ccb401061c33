# SPDX-License-Identifier: Apache-2.0
"""The record of an ABI for the analysis of code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code.aarch64 import AARCH64_CODE
from cfi2sframe.code.amd64 import AMD64_CODE
from cfi2sframe.code.s390x import S390X_CODE
from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.code.effects import CodeArch


def code_arch_of(arch: Arch) -> CodeArch:
    """Return the record of an ABI."""
    return {EM_X86_64: AMD64_CODE, EM_AARCH64: AARCH64_CODE, EM_S390: S390X_CODE}[arch.elf_machine]
