# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as call frame instructions of a sound file, converted in every version and verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import load
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_conversions
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, Code, cie_of, linked_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cfi_instructions import Instruction

_SIZES = (1, 16, 300, 70_000)
_SEPARATOR = b"\xff\xfe"


def run(data: bytes) -> None:
    """Make a file of instructions and convert it.

    Two bytes choose ABI, augmentation, alignments, version and level; then come the CIE's instructions and those of
    the FDEs, set apart from one another by `ff fe`. FDEs follow one another, or overlap, as the second byte chooses.
    """
    if len(data) < 2:
        return
    arch = make.ARCHES[data[0] % len(make.ARCHES)]
    signal = "zRS" if data[0] & 0x10 else "zR"
    cie = cie_of(arch, augmentation=signal)
    initial, *codes = data[2:].split(_SEPARATOR)
    usual = cie.instructions if data[0] & 0x20 else ()
    cie = cie._replace(
        instructions=(*usual, initial), data_align=-4 if data[0] & 0x40 else -8, code_align=4 if data[0] & 0x80 else 1
    )
    size = _SIZES[data[1] & 3]
    step = size if data[1] & 4 else max(1, size // 2)
    fdes = [asm.Fde(cie, TEXT_VADDR + step * number, size, (code,)) for number, code in enumerate(codes)]
    file = linked_file(arch, fdes, codes=(Code(size=size * (len(codes) + 1)),))
    level = LEVELS[data[1] >> 6]
    check_conversions(load(file), level, (1 + (data[1] >> 3 & 7) % 3,))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield each list of instructions for each ABI."""
    for number, arch in enumerate(make.ARCHES[:3]):
        for name, instructions in make.instruction_lists(arch):
            code = [_bytes_of(instruction) for instruction in instructions if instruction.opcode != 1]
            whole = b"".join(code)
            several = _SEPARATOR.join((b"", whole, b"".join(code[: len(code) // 2]), whole))
            yield f"{arch.name.lower()}-{name}", bytes([0x20 + number, 0x16]) + several
            for choice, level in enumerate(LEVELS[1:3], 1):
                yield f"{arch.name.lower()}-{name}-O{level}", bytes([0x20 + number, 0x16 + 0x40 * choice]) + several


def _bytes_of(instruction: Instruction) -> bytes:
    """Return an instruction's bytes (little-endian advances are fine: big-endian ones are only larger)."""
    sizes = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
    out = bytes([instruction.opcode])
    for kind, value in instruction.operands:
        if kind in sizes:
            out += value.to_bytes(sizes[kind], "little")
        else:
            out += asm.uleb128(value) if kind == "uleb" else asm.sleb128(value)
    return out + instruction.tail
