# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as Go's table of functions, alone or beside an `.eh_frame`, which they must not cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError
from tests.fuzz.checks import LEVELS, check_conversions
from tests.fuzz.harness import expect
from tests.support import cfi_asm as asm
from tests.support.go_table import GO_1_18, GO_1_20, SP_WRITE, TOP_FRAME, GoFunction, GoTable, go_file
from tests.support.samples import FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, cie_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.abi import Arch

_ARCHES = (AMD64, AARCH64_LE, S390X)
_WITH_EH_FRAME = 0x10
#: Functions far from one another, as the offsets in a table may be.
_CODE_SIZE = 1 << 20


def run(data: bytes) -> None:
    """Convert a file with a table. The first byte chooses the ABI, and whether there is an `.eh_frame`, too."""
    if not data:
        return
    arch = _ARCHES[data[0] % len(_ARCHES)]
    if not data[0] & _WITH_EH_FRAME:
        try:
            image = load(go_file(arch, data[1:], code_size=_CODE_SIZE))
        except Cfi2SFrameError:
            return
        check_conversions(image, LEVELS[len(data) % len(LEVELS)], (3,))
        return
    image = load(go_file(arch, data[1:], _eh_frame(arch), code_size=_CODE_SIZE))
    conversion = convert_image(image)
    expect(conversion.cfi.sections[0].kind == "eh_frame", "the table comes first")
    expect(0 not in conversion.code_map.dropped, "the function of .eh_frame is dropped")
    expect(0 in conversion.code_map.pieces.numbers, "the function of .eh_frame has no code")


def _eh_frame(arch: Arch) -> asm.Section:
    fde = asm.Fde(cie_of(arch), TEXT_VADDR + 16, 32)
    frame = asm.EhFrame((fde, asm.Terminator()), FRAME_VADDR, little_endian=arch.byte_order == "<").assemble()
    return asm.Section(".eh_frame", frame, 1, SHF_ALLOC, FRAME_VADDR, align=8)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield tables of every ABI and of both versions, with functions of every kind."""
    depths = ((4, 0), (24, 16), (4, 0), (8, 160))
    functions = (
        GoFunction(0, depths),
        GoFunction(64, depths, "runtime.goexit", TOP_FRAME),
        GoFunction(128, depths, "runtime.mcall", SP_WRITE),
        GoFunction(192, depths, "runtime.asyncPreempt"),
        GoFunction(256, ((8, 0), (8, -8), (8, 0)), "syscall.rawVforkSyscall"),
        GoFunction(320),
    )
    for number, arch in enumerate(_ARCHES):
        for name, magic in (("1.18", GO_1_18), ("1.20", GO_1_20)):
            table = GoTable(functions, 384, magic).assemble(arch)
            yield f"{arch.name.lower()}-{name}", bytes([number]) + table
            # 48 is a multiple of the number of ABIs, and has the bit.
            yield f"{arch.name.lower()}-{name}-both", bytes([number + 48]) + table
