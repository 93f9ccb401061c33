# SPDX-License-Identifier: Apache-2.0
"""The stack depth at the instructions of stubs, measured: an emulator executes them as the file has them."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pytest

from cfi2sframe.abi import AMD64, S390X
from cfi2sframe.elf.image import ElfImage

_PAGE: Final = 0x1000
_STACK_VADDR: Final = 0x7F00_0000_0000
_STACK_SIZE: Final = 0x10000
_PT_LOAD: Final = 1
#: A stub that runs longer has lost its way.
_MAX_STEPS: Final = 100


class Measured(NamedTuple):
    """An executed instruction: its size in bytes, and every distance of the CFA from SP that it was met with."""

    size: int
    depths: frozenset[int]


def measure(image: ElfImage, ranges: Iterable[range], entries: Iterable[int]) -> dict[int, Measured]:
    """Execute stubs from each entry until they leave the ranges; skip the test where there is no emulator."""
    machine = _Machine(image, tuple(ranges))
    for entry in entries:
        machine.run(entry)
    return {pc: Measured(machine.sizes[pc], frozenset(depths)) for pc, depths in machine.depths.items()}


class _Machine:
    def __init__(self, image: ElfImage, ranges: tuple[range, ...]) -> None:
        self.unicorn = pytest.importorskip("unicorn", reason="no unicorn: make venv")
        self.image = image
        self.ranges = ranges
        self.sizes: dict[int, int] = {}
        self.depths: dict[int, set[int]] = {}
        self.emulator, self.sp_register = self._open()
        self._map_file()
        self.emulator.mem_map(_STACK_VADDR, _STACK_SIZE)
        self.entry_sp = _STACK_VADDR + _STACK_SIZE // 2
        self.entry_depth = 8 if image.arch is AMD64 else 160 if image.arch is S390X else 0
        self.emulator.hook_add(self.unicorn.UC_HOOK_CODE, self._on_instruction)

    def _open(self) -> tuple[Any, int]:
        uc = self.unicorn
        if self.image.arch is AMD64:
            from unicorn.x86_const import UC_X86_REG_RSP

            return uc.Uc(uc.UC_ARCH_X86, uc.UC_MODE_64), UC_X86_REG_RSP
        if self.image.arch is S390X:
            from unicorn.s390x_const import UC_S390X_REG_R15

            return uc.Uc(uc.UC_ARCH_S390X, uc.UC_MODE_BIG_ENDIAN), UC_S390X_REG_R15
        from unicorn.arm64_const import UC_ARM64_REG_SP

        return uc.Uc(uc.UC_ARCH_ARM64, uc.UC_MODE_ARM), UC_ARM64_REG_SP

    def _map_file(self) -> None:
        loads = [s for s in self.image.segments if s.type == _PT_LOAD]
        pages = {page for s in loads for page in range(s.vaddr // _PAGE * _PAGE, s.vaddr + s.memory_size, _PAGE)}
        for page in sorted(pages):
            self.emulator.mem_map(page, _PAGE)
        for s in loads:
            content = bytes(self.image.data[s.file_offset : s.file_offset + s.file_size])
            self.emulator.mem_write(s.vaddr, content)

    def _on_instruction(self, emulator: Any, pc: int, size: int, _user: object) -> None:  # noqa: ANN401
        if not any(pc in covered for covered in self.ranges):
            emulator.emu_stop()
            return
        self.sizes[pc] = size
        self.depths.setdefault(pc, set()).add(self.entry_depth + self.entry_sp - emulator.reg_read(self.sp_register))

    def run(self, entry: int) -> None:
        """Execute from an entry; the word at SP, which is the return address of AMD64, leads nowhere."""
        self.emulator.reg_write(self.sp_register, self.entry_sp)
        self.emulator.mem_write(_STACK_VADDR, bytes(_STACK_SIZE))
        try:
            self.emulator.emu_start(entry, 0, count=_MAX_STEPS)
        except self.unicorn.UcError:
            # It went to an address that only the dynamic loader would have put there.
            return
