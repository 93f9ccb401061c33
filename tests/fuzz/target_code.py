# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as code without CFI, alone or beside a function that has some."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.arch import AARCH64_BE, AARCH64_LE, AMD64, S390X
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError
from tests.fuzz.checks import LEVELS, check_conversions
from tests.fuzz.harness import expect
from tests.support import cfi_asm as asm
from tests.support.samples import CODE, FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, cie_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.arch import Arch

_ARCHES = (AMD64, AARCH64_LE, S390X, AARCH64_BE)
_WITH_EH_FRAME = 0x10
_IS_OBJECT = 0x20
#: Bytes of code that have CFI, if any have.
_COVERED_SIZE = 16
_STT_SECTION, _FUNCTION = 0x03, 0x12


def run(data: bytes) -> None:
    """Derive rows for code. The first byte chooses the ABI and the kind of file; the second where a function begins."""
    if len(data) < 4:
        return
    arch, second = _ARCHES[data[0] % len(_ARCHES)], 4 * data[1]
    has_cfi, is_object = bool(data[0] & _WITH_EH_FRAME), bool(data[0] & _IS_OBJECT)
    image = load(_file(arch, data[2:], second, has_cfi=has_cfi and not is_object, is_object=is_object))
    check_conversions(image, LEVELS[len(data) % len(LEVELS)], (3, 2), "code")
    try:
        conversion = convert_image(image)
    except Cfi2SFrameError:
        return
    expect(conversion.cfi.underived is None, "derived without having been asked")
    expect(not conversion.cfi.derived_numbers, "functions from instructions without having been asked for")


def _file(arch: Arch, code: bytes, second: int, *, has_cfi: bool, is_object: bool) -> bytes:
    little_endian = arch.byte_order == "<"
    vaddr = 0 if is_object else TEXT_VADDR
    text = asm.Section(".text", code, 1, CODE, vaddr, align=16)
    functions = {_COVERED_SIZE if has_cfi else 0, second}
    symbols = tuple(
        asm.Symbol(f"f{number}", vaddr + start, 0, _FUNCTION) for number, start in enumerate(sorted(functions))
    )
    if is_object:
        symbols = (asm.Symbol("text", info=_STT_SECTION), *symbols)
        return asm.elf_file(arch.elf_machine, (text,), little_endian=little_endian, symbols=symbols)
    fde = asm.Fde(cie_of(arch), TEXT_VADDR, min(_COVERED_SIZE, len(code)))
    frame = asm.EhFrame((fde, asm.Terminator()), FRAME_VADDR, little_endian=little_endian).assemble()
    frames = (asm.Section(".eh_frame", frame, 1, SHF_ALLOC, FRAME_VADDR, align=8),) if has_cfi else ()
    return asm.elf_file(
        arch.elf_machine,
        (*frames, text),
        file_type=3,
        little_endian=little_endian,
        segments=(*(asm.Segment(1, 4, (".eh_frame",)) for _ in frames), asm.Segment(1, 5, (".text",))),
        symbols=symbols,
    )


#: For each ABI: a leaf; a frame with calls of itself; a loop; a jump through a table; a jump into an instruction.
_AMD64 = (
    "c3",
    "55 48 89 e5 53 48 83 ec 18 e8 ee ff ff ff 48 83 c4 18 5b 5d c3",
    "41 54 4c 8d 64 24 08 48 83 e4 e0 41 ff 74 24 f8 55 48 89 e5 e2 fe 5d 49 8d 64 24 f8 41 5c c3",
    "83 ff 01 77 10 48 8d 05 0a 00 00 00 48 63 3c b8 48 01 f8 ff e0 c3 90 90 ea ff ff ff ea ff ff ff",
    "eb ff c0 c3 eb fc",
)
_AARCH64 = (
    (0xD65F03C0,),
    (0xD503233F, 0xA9BE7BFD, 0x910003FD, 0xF9000BF3, 0x97FFFFFC, 0xF9400BF3, 0xA8C27BFD, 0xD50323BF, 0xD65F03C0),
    (0xD10083FF, 0xB5FFFFE0, 0x910083FF, 0xD65F03C0),
    (0x7100081F, 0x540000C8, 0x10000081, 0x38604821, 0x8B21A822, 0xD61F0040, 0xD65F03C0, 0x00010100),
)
_S390X = (
    "07fe",
    "eb6ff0300024 b90400ef a7fbff60 e3e0f0000024 c0e5fffffff8 e340f1100004 eb6ff0d00004 07f4",
    "a7fbff58 a7440000 a716ffff 41f0f0a8 07fe",
)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield functions of every ABI, in libraries with CFI and without, and in objects."""
    words = [b"".join(struct.pack("<I", word) for word in each) for each in _AARCH64]
    codes = {
        AMD64: [bytes.fromhex(each) for each in _AMD64],
        AARCH64_LE: words,
        S390X: [bytes.fromhex(each) for each in _S390X],
        AARCH64_BE: words[1:2],
    }
    for arch, each in codes.items():
        for number, code in enumerate(each):
            for kind, bits in (("alone", 0), ("beside", _WITH_EH_FRAME), ("object", _IS_OBJECT)):
                filled = bytes(_COVERED_SIZE * (kind == "beside")) + code
                name = f"{arch.name.lower().replace(' ', '-')}-{number}-{kind}"
                yield name, bytes((_ARCHES.index(arch) | bits, len(code) // 8)) + filled
