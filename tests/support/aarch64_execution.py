# SPDX-License-Identifier: Apache-2.0
"""What an AArch64 instruction does, measured: an emulator executes it once, from given values of all registers."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

import pytest

_PAGE: Final = 0x1000
_CODE_VADDR: Final = 0x40_0000
_CODE_SIZE: Final = 0x40_0000
_END: Final = (1 << 64) - 1
#: CPACR_EL1 (FPEN, ZEN) and CPTR_EL3 (EZ): without them, vectors trap. CRn, CRm, op0, op1, op2, value.
_CPACR_EL1: Final = (1, 0, 3, 0, 2, 0x330000)
_CPTR_EL3: Final = (1, 1, 3, 6, 2, 0x100)
#: The numbers of SP and of FP, RA; general registers are 0 to 30.
SP: Final = 31
REGISTERS: Final = tuple(range(32))


class Executed(NamedTuple):
    """What an instruction has done: registers by DWARF's numbers, NZCV, the writes to memory with their sizes."""

    pc: int
    registers: dict[int, int]
    flags: int
    writes: tuple[tuple[int, int], ...]


class Machine:
    """An emulator of the newest processor that it knows, with code at some addresses and memory everywhere else."""

    def __init__(self) -> None:
        unicorn = pytest.importorskip("unicorn", reason="no emulator; get it with: pip install unicorn")
        import unicorn.arm64_const as numbers

        self._error: Any = unicorn.UcError
        self._fetches: Any = (unicorn.UC_ERR_FETCH_UNMAPPED, unicorn.UC_ERR_FETCH_PROT)
        emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        emulator.ctl_set_cpu_model(numbers.UC_CPU_ARM64_MAX)
        for register in (_CPACR_EL1, _CPTR_EL3):
            emulator.reg_write(numbers.UC_ARM64_REG_CP_REG, register)
        emulator.mem_map(_CODE_VADDR, _CODE_SIZE)
        emulator.hook_add(unicorn.UC_HOOK_MEM_READ_UNMAPPED | unicorn.UC_HOOK_MEM_WRITE_UNMAPPED, self._on_unmapped)
        emulator.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._on_write)
        self._emulator = emulator
        self._pages: set[int] = set()
        self._writes: list[tuple[int, int]] = []
        self._pc = numbers.UC_ARM64_REG_PC
        self._nzcv = numbers.UC_ARM64_REG_NZCV
        named = {29: numbers.UC_ARM64_REG_X29, 30: numbers.UC_ARM64_REG_X30, SP: numbers.UC_ARM64_REG_SP}
        self._numbers = [named.get(n, numbers.UC_ARM64_REG_X0 + n) for n in REGISTERS]

    def load(self, code: bytes) -> int:
        """Write code, and return the address of its first instruction."""
        self._emulator.mem_write(_CODE_VADDR, code)
        self._emulator.ctl_flush_tb()
        return _CODE_VADDR

    def read(self, vaddr: int, size: int) -> int:
        """Return a number in memory, which has some from the first access on."""
        self._map(vaddr, size)
        return int.from_bytes(self._emulator.mem_read(vaddr, size), "little")

    def forget(self) -> None:
        """Give memory its first content again."""
        for page in self._pages:
            self._emulator.mem_unmap(page, _PAGE)
        self._pages.clear()

    def execute(self, pc: int, registers: dict[int, int], flags: int) -> Executed | None:
        """Execute one instruction; return None where the emulator cannot."""
        emulator = self._emulator
        for number, name in enumerate(self._numbers):
            emulator.reg_write(name, registers[number])
        emulator.reg_write(self._nzcv, flags)
        self._writes.clear()
        try:
            emulator.emu_start(pc, _END, count=1)
        except self._error as error:
            # A jump is made before there turns out to be no code.
            if error.errno not in self._fetches:
                return None
        after = {number: emulator.reg_read(name) for number, name in enumerate(self._numbers)}
        return Executed(emulator.reg_read(self._pc), after, emulator.reg_read(self._nzcv), tuple(self._writes))

    def _map(self, vaddr: int, size: int) -> None:
        for page in range(vaddr // _PAGE * _PAGE, vaddr + size, _PAGE):
            if page not in self._pages and not _CODE_VADDR <= page < _CODE_VADDR + _CODE_SIZE:
                self._emulator.mem_map(page, _PAGE)
                self._emulator.mem_write(page, random.Random(page).randbytes(_PAGE))  # noqa: S311 - any content
                self._pages.add(page)

    def _on_unmapped(self, _emulator: Any, _kind: int, vaddr: int, size: int, *_: object) -> bool:  # noqa: ANN401
        self._map(vaddr, size)
        return True

    def _on_write(self, _emulator: Any, _kind: int, vaddr: int, size: int, *_: object) -> None:  # noqa: ANN401
        self._writes.append((vaddr, size))
