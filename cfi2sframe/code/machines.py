# SPDX-License-Identifier: Apache-2.0
"""The record of an ABI for the analysis of code, and what reads its instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code.aarch64 import AARCH64_CODE
from cfi2sframe.code.amd64 import AMD64_CODE
from cfi2sframe.code.disassembler import open_disassembler
from cfi2sframe.code.s390x import S390X_CODE
from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64

if TYPE_CHECKING:
    from typing import Any

    from cfi2sframe.arch import Arch
    from cfi2sframe.code.effects import CodeArch


def code_arch_of(arch: Arch) -> CodeArch:
    """Return the record of an ABI."""
    return {EM_X86_64: AMD64_CODE, EM_AARCH64: AARCH64_CODE, EM_S390: S390X_CODE}[arch.elf_machine]


def open_for_code(arch: Arch, what: str, otherwise: str = "") -> Any:  # noqa: ANN401 - capstone has no types
    """Return a disassembler that passes over what `CodeArch.effect_of` knows better. Raises as `open_disassembler`."""
    disassembler = open_disassembler(arch, what, otherwise)
    prepare = code_arch_of(arch).prepare
    if prepare is not None:
        prepare(disassembler)
    return disassembler
