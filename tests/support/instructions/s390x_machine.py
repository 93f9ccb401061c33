# SPDX-License-Identifier: Apache-2.0
"""One s390x instruction, executed by an emulator, with the state before and after."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest

from cfi2sframe.instructions.s390x import FLOATS

GENERAL_COUNT: Final = 16
#: All memory that there is; registers point to the window in its midst.
MEMORY_SIZE: Final = 1 << 28
CODE_VADDR: Final = 1 << 27
WINDOW_VADDR: Final = 1 << 26
WINDOW_SIZE: Final = 1 << 13
#: Addresses of 64 bits, and problem state, in which privileged instructions are refused.
_MODE: Final = 0x1_8000_0000
_PROBLEM_STATE: Final = 1 << 48
_CC_SHIFT: Final = 44
#: LCTLG of control register 0 from where r1 points to, and its bits for floating point and vector registers.
_LCTLG: Final = bytes.fromhex("eb001000002f")
_CR0: Final = 0x60000
#: What unicorn 2.1 does not survive.
CRASHING: Final = frozenset({"sqxbr"})
#: Floating point registers in the order of DWARF's numbers.
_FLOAT_NUMBERS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)


class State(NamedTuple):
    """Registers by DWARF's numbers, the condition code, the address of the next instruction, the window's bytes."""

    registers: dict[int, int]
    cc: int
    pc: int
    window: bytes


class Machine:
    """Executes instructions; skips the test without the emulator."""

    def __init__(self) -> None:
        self.unicorn = pytest.importorskip("unicorn", reason="no emulator; get it with: pip install unicorn")
        from unicorn import s390x_const as names

        general = [getattr(names, f"UC_S390X_REG_R{number}") for number in range(GENERAL_COUNT)]
        floats = [getattr(names, f"UC_S390X_REG_F{number}") for number in _FLOAT_NUMBERS]
        self.numbers: dict[int, int] = dict(enumerate(general)) | dict(zip(FLOATS, floats, strict=True))
        self.names = names
        self.emulator = self._open()

    def _open(self) -> Any:  # noqa: ANN401
        uc = self.unicorn
        emulator = uc.Uc(uc.UC_ARCH_S390X, uc.UC_MODE_BIG_ENDIAN)
        emulator.mem_map(0, MEMORY_SIZE)
        emulator.mem_write(WINDOW_VADDR, _CR0.to_bytes(8, "big"))
        emulator.mem_write(CODE_VADDR, _LCTLG)
        emulator.reg_write(self.numbers[1], WINDOW_VADDR)
        emulator.reg_write(self.names.UC_S390X_REG_PSWM, _MODE)
        emulator.emu_start(CODE_VADDR, CODE_VADDR + len(_LCTLG), count=1)
        return emulator

    def execute(self, code: bytes, before: State) -> State | None:
        """Execute an instruction at `CODE_VADDR`; return the state after it, None when it is refused."""
        emulator, names = self.emulator, self.names
        for register, value in before.registers.items():
            emulator.reg_write(self.numbers[register], value)
        emulator.reg_write(names.UC_S390X_REG_PSWM, _MODE | _PROBLEM_STATE | before.cc << _CC_SHIFT)
        emulator.mem_write(WINDOW_VADDR, before.window)
        emulator.mem_write(CODE_VADDR, code)
        try:
            emulator.emu_start(CODE_VADDR, CODE_VADDR + len(code), count=1)
        except self.unicorn.UcError:
            return None
        return State(
            {register: emulator.reg_read(number) for register, number in self.numbers.items()},
            emulator.reg_read(names.UC_S390X_REG_PSWM) >> _CC_SHIFT & 3,
            emulator.reg_read(names.UC_S390X_REG_PC),
            bytes(emulator.mem_read(WINDOW_VADDR, WINDOW_SIZE)),
        )
