# SPDX-License-Identifier: Apache-2.0
"""Padding in real files: its bytes as capstone reads them, what linkers fill with, and where landing pads are."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import capstone
import pytest
from elftools.elf.elffile import ELFFile

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from cfi2sframe.errors import UnfitError
from cfi2sframe.padding import is_fill
from tests.support.stubs.linked import Variant, link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion import Conversion
    from tests.support.oracle.tools import CorpusArch

pytestmark = pytest.mark.slow

#: Files of each architecture, and the largest of them that is read, in bytes.
FILE_COUNT: Final = 60
LARGEST: Final = 3_000_000
_MODES: Final = {
    AMD64.name: (capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    AARCH64_LE.name: (capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN),
    S390X.name: (capstone.CS_ARCH_SYSZ, capstone.CS_MODE_BIG_ENDIAN),
}
#: Instructions of s390x that branch if the first operand says so; it never does.
_CONDITIONAL: Final = ("bcr", "bc", "brc", "brcl")


def _conversions(folder: Path) -> Iterator[Conversion]:
    """Yield the conversions of some linked files, the same each time."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < LARGEST and _is_linked(p))
    for path in random.Random(19).sample(paths, min(FILE_COUNT, len(paths))):  # noqa: S311 - a choice of files
        with suppress(UnfitError):
            yield convert(load(path))


@pytest.fixture(scope="module", params=("amd64", "arm64", "s390x"))
def conversions(request: pytest.FixtureRequest, corpus: Callable[[CorpusArch], Path]) -> tuple[Conversion, ...]:
    """Conversions of files of one architecture."""
    return tuple(_conversions(corpus(request.param)))


def _is_linked(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(18)
    if head[:5] != b"\x7fELF\x02" or head[16:18] not in (b"\x02\0", b"\x03\0", b"\0\x02", b"\0\x03"):
        return False
    with path.open("rb") as file:
        return ELFFile(file).get_section_by_name(".eh_frame") is not None


def _gaps(conversion: Conversion) -> Iterator[tuple[int, int]]:
    """Yield the addresses between functions and stubs, in one section each."""
    ranges = [(start, end) for _, start, end in conversion.code_map.pieces.records]
    ranges += [(stub.start_vaddr, stub.start_vaddr + stub.size) for stub in conversion.code_map.stubs.functions]
    for code in conversion.image.code_ranges:
        held = [r for r in ranges if code.start_vaddr <= r[0] < code.end_vaddr]
        for (_, end), (start, _) in pairwise(sorted([*held, (code.end_vaddr, 0)])):
            if end < start:
                yield end, start


def _only_fills(arch: Arch, data: bytes) -> bool:
    """Whether capstone reads nothing but instructions without an effect, traps of one kind, and zeros."""
    reader = capstone.Cs(*_MODES[arch.name])
    position = 0
    unit = {AMD64.name: 1, AARCH64_LE.name: 4, S390X.name: 2}[arch.name]
    while position < len(data):
        # Not an instruction, or one that no compiler writes.
        if data[position : position + unit] == bytes(unit):
            position += unit
            continue
        instruction = next(reader.disasm(data[position:], 0, 1), None)
        if instruction is None or not _does_nothing(instruction):
            return False
        position += instruction.size
    return True


def _does_nothing(instruction: capstone.CsInsn) -> bool:
    name, operands = instruction.mnemonic, instruction.op_str
    return (
        name in ("nop", "int3", "nopr", "jnop", "jgnop")
        or (name in _CONDITIONAL and operands.startswith("0,"))
        or (name == "brk" and operands in ("#0", "#1", "#0x1"))
    )


@pytest.mark.corpus
@pytest.mark.oracle
def test_gaps_as_capstone_reads_them(conversions: tuple[Conversion, ...]) -> None:
    """A gap of fewer than 64 bytes is taken for padding only where capstone reads nothing else in it.

    Those that are not, because something refers to them, are the exception.
    """
    read: dict[bytes, bool] = {}
    filled = found = 0
    for conversion in conversions:
        image = conversion.image
        padding = set(conversion.code_map.padding)
        for start, end in _gaps(conversion):
            code = image.code_range_of(start)
            assert code is not None
            data = image.code_bytes(code, start, end)
            if len(data) >= 64:
                assert (start, end) not in padding
                continue
            if data not in read:
                read[data] = _only_fills(image.arch, data)
                assert is_fill(image.arch, data) == read[data], (image.name, hex(start), data.hex())
            assert read[data] or (start, end) not in padding
            filled += read[data]
            found += (start, end) in padding
    assert found > 3_000
    assert found > 0.99 * filled


# Linkers

#: Two functions in sections of their own, far from a multiple of 64 bytes in size.
ALIGNED: Final = """
__attribute__((aligned(64))) int first(int x) { return x + 1; }
__attribute__((aligned(64))) int second(int x) { return x + 2; }
__attribute__((aligned(64))) int third(int x) { return x + 3; }
"""
_OPTIONS: Final = ("-shared", "-fPIC", "-nostdlib", "-DONE_CALL", "-ffunction-sections")
_MOLDS: Final = ("mold-1", "mold-2")
LINKERS: Final = (
    *(Variant("fill", linker, _OPTIONS, {}) for linker in ("2.40", "2.44", "newest", "gold", "lld", *_MOLDS)),
    # Since version 2, mold fills with GCC's trap there, which could be code.
    *(Variant("fill", linker, _OPTIONS, {}, "aarch64-linux-gnu-gcc") for linker in ("bfd", "gold", "lld", "mold-1")),
    *(Variant("fill", linker, _OPTIONS, {}, "s390x-linux-gnu-gcc") for linker in ("bfd", *_MOLDS)),
)


@pytest.mark.oracle
@pytest.mark.parametrize("variant", LINKERS, ids=lambda v: f"{v.compiler.partition('-')[0]}-{v.linker}")
def test_what_linkers_fill_with(variant: Variant, tmp_path: Path) -> None:
    """Between input sections, each linker has a pattern of its own."""
    source = tmp_path / "aligned.c"
    source.write_text(ALIGNED)
    image = link(variant._replace(options=(*variant.options, str(source))), tmp_path)
    conversion = convert(image, level=1)
    padding = dict(conversion.code_map.padding)
    names = {name: vaddr for vaddr, name in image.names_of(conversion.section.starts).items()}
    sizes = dict(zip(conversion.section.starts, conversion.section.sizes, strict=True))
    for name, following in (("first", "second"), ("second", "third")):
        start, next_start = names[name], names[following]
        assert next_start % 64 == 0
        assert start + sizes[start] == next_start
        assert next_start in padding.values()
