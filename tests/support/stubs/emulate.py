# SPDX-License-Identifier: Apache-2.0
"""The stack depth at the instructions of stubs, measured: an emulator executes them as the file has them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest

from cfi2sframe.elf.image import ElfImage
from tests.support.instructions.execution import MEMORY_SIZE, TARGETS

_STACK_SIZE: Final = 0x10000
#: A stub that runs longer has lost its way.
_MAX_STEPS: Final = 100


class Measured(NamedTuple):
    """An executed instruction: its size in bytes, and every distance of the CFA from SP that it was met with."""

    size: int
    depths: frozenset[int]


def measure(image: ElfImage, ranges: Iterable[range], entries: Iterable[int]) -> dict[int, Measured]:
    """Execute stubs from each entry until they leave the ranges; skip the test where there is no emulator."""
    unicorn = pytest.importorskip("unicorn", reason="no unicorn: make venv")
    (target,) = (target for target in TARGETS.values() if target.abi.arch is image.arch)
    emulator, numbers, _ = target.open(unicorn)
    covered, sp_register = tuple(ranges), numbers[image.arch.sp_register]
    sizes: dict[int, int] = {}
    depths: dict[int, set[int]] = {}
    entry_sp, entry_depth = MEMORY_SIZE - _STACK_SIZE // 2, {"AMD64": 8, "s390x": 160}.get(image.arch.name, 0)

    def on_instruction(emulator: Any, pc: int, size: int, _user: object) -> None:  # noqa: ANN401
        if not any(pc in each for each in covered):
            emulator.emu_stop()
            return
        sizes[pc] = size
        depths.setdefault(pc, set()).add(entry_depth + entry_sp - emulator.reg_read(sp_register))

    for segment in image.loads:
        content = image.data[segment.file_offset : segment.file_offset + segment.file_size]
        emulator.mem_write(segment.vaddr, bytes(content))
    emulator.hook_add(unicorn.UC_HOOK_CODE, on_instruction)
    for entry in entries:
        emulator.reg_write(sp_register, entry_sp)
        # The word at SP, which is the return address of AMD64, leads nowhere.
        emulator.mem_write(MEMORY_SIZE - _STACK_SIZE, bytes(_STACK_SIZE))
        with suppress(unicorn.UcError):  # at an address that only the dynamic loader would have put there
            emulator.emu_start(entry, 0, count=_MAX_STEPS)
    return {pc: Measured(sizes[pc], frozenset(found)) for pc, found in depths.items()}
