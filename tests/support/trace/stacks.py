# SPDX-License-Identifier: Apache-2.0
"""Stacks made up frame by frame: what lies in memory, the SFrame section that describes it, and the right trace.

The section is put together from the specification's tables, without the package's encoder.
"""

import struct
from typing import Final, NamedTuple

from cfi2sframe.abi import AMD64, S390X, Arch
from cfi2sframe.api import decode
from cfi2sframe.sframe.model import Found
from cfi2sframe.trace import Ending, Frame
from tests.support.sframe.raw_sframe import RawFunction, RawSection

SECTION_VADDR: Final = 0x30000
FUNCTION_SIZE: Final = 0x100
#: Where a frame's PC is in its function: after the row that counts, at the start of one that would be wrong.
PC_DELTA: Final = 0x40
STACK: Final = 0x7FFF_0000_0000
PAC: Final = 0x5A << 56 | 0x2B << 48
WORDS_OF_4_BYTES: Final = 2 << 5


class Model(NamedTuple):
    """A frame to make up.

    `size` is the bytes from its SP to its caller's; `keeps_ra`: RA is in its register (AArch64, s390x; topmost frames
    only); `base_is_fp`: the row counts from FP.
    """

    size: int
    saves_fp: bool
    base_is_fp: bool = False
    keeps_ra: bool = False
    is_signed: bool = False


class Stack(NamedTuple):
    """A made-up stack: its topmost frame, its memory, its section, and every frame that a trace has to find."""

    arch: Arch
    memory: dict[int, int]
    section: bytes
    frames: tuple[Frame, ...]

    def read(self, address: int, size: int) -> bytes | None:
        """Read a word of the stack."""
        value = self.memory.get(address)
        return None if value is None or size != 8 else struct.pack(self.arch.byte_order + "Q", value)

    def find(self, address: int) -> Found | Ending:
        """Look the section's rows up, as a module's are."""
        return find_row(self.section, address)


def find_row(section: bytes, address: int) -> Found | Ending:
    """Return the row of a raw section for an address."""
    found = decode(section, SECTION_VADDR).find(address)
    return Ending("no-row", "none") if found is None or found.state is None else found


def words_row(
    order: str, start: int, words: tuple[int, ...], *, base_is_fp: bool = False, signed: bool = False
) -> bytes:
    """Return a row with data words of 4 bytes and a start of 1."""
    info = (not base_is_fp) | len(words) << 1 | WORDS_OF_4_BYTES | signed << 7
    return struct.pack(f"{order}BB{len(words)}i", start, info, *words)


def raw_section(arch: Arch, version: int, functions: tuple[RawFunction, ...]) -> bytes:
    """Return a section of an ABI."""
    return RawSection(
        functions,
        version=version,
        order=arch.byte_order,
        abi=arch.abi_id,
        fixed_ra=arch.fixed_ra_offset,
        vaddr=SECTION_VADDR,
    ).assemble()


def make_stack(arch: Arch, version: int, models: list[Model]) -> Stack:
    """Return the stack of these frames, the topmost first, called from a function that has no caller."""
    memory: dict[int, int] = {}
    functions: list[RawFunction] = []
    frames: list[Frame] = []
    fps = _frame_pointers(arch, models)
    sp = STACK
    for number, model in enumerate(models):
        cfa = sp + model.size - arch.sp_offset_from_cfa
        ra_offset, fp_offset = (-8, -16) if arch is AMD64 else (-48, -56)
        stored_ra = _pc(number + 1) | (PAC if model.is_signed else 0)
        if not model.keeps_ra:
            memory[cfa + ra_offset] = stored_ra
        if model.saves_fp:
            memory[cfa + fp_offset] = fps[number + 1]
        base = fps[number] if model.base_is_fp else sp
        words = [(cfa - base - arch.cfa_offset_bias) // arch.cfa_offset_scale]
        if arch is not AMD64 and not model.keeps_ra:
            words.append(ra_offset)
        elif arch is S390X and model.saves_fp:
            words.append(0)
        if model.saves_fp:
            words.append(fp_offset)
        functions.append(_function(arch, number, tuple(words), model))
        frames.append(Frame(_pc(number), sp, fps[number], is_return_address=number > 0))
        sp += model.size
    frames.append(Frame(_pc(len(models)), sp, fps[-1], is_return_address=bool(models)))
    if version > 1:
        functions.append(RawFunction(_start(len(models)), FUNCTION_SIZE, words_row(arch.byte_order, 0, ()), 1))
    ra = None
    if models and models[0].keeps_ra:
        ra = _pc(1) | (PAC if models[0].is_signed else 0)
    frames[0] = frames[0]._replace(ra=ra)
    return Stack(arch, memory, raw_section(arch, version, tuple(functions)), tuple(frames))


def _frame_pointers(arch: Arch, models: list[Model]) -> list[int]:
    """Return each frame's FP: where it is a row's base, an address in that frame; else any value."""
    values, sp = [0x1234], STACK
    for number, model in enumerate(models):
        if model.base_is_fp:
            values[number] = sp + 8
        sp += model.size
        values.append(0x5000 + number if model.saves_fp else values[number])
    if any(m.base_is_fp and n and not models[n - 1].saves_fp for n, m in enumerate(models)):
        raise ValueError(f"{arch.name}: FP is a base where its value was not saved")
    return values


def _start(number: int) -> int:
    return 0x100000 + number * 0x1000


def _pc(number: int) -> int:
    return _start(number) + PC_DELTA


def _function(arch: Arch, number: int, words: tuple[int, ...], model: Model) -> RawFunction:
    """Return a function whose row changes at the PC: before a call for the topmost frame, after it for others."""
    order = arch.byte_order
    right = {"base_is_fp": model.base_is_fp, "signed": model.is_signed}
    wrong = (words[0] + 7, *words[1:])
    rows = (
        words_row(order, 0, wrong),
        words_row(order, PC_DELTA if number == 0 else 0x10, words, **right),
        words_row(order, PC_DELTA + 1 if number == 0 else PC_DELTA, wrong),
    )
    return RawFunction(_start(number), FUNCTION_SIZE, b"".join(rows), len(rows))
