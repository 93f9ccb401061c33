# SPDX-License-Identifier: Apache-2.0
"""Verification of FDEs and functions that overlap, nest or repeat: time is in proportion to their number."""

from collections.abc import Callable
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.api import convert, decode, judge, verify
from cfi2sframe.verification import READERS
from cfi2sframe.verification.readers import Verdict
from cfi2sframe.verification.truth import MAX_CANDIDATES
from cfi2sframe.verification.verify import Verification
from tests.fuzz import target_file
from tests.fuzz.harness import measured, timed
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file
from tests.support.sframe.raw_sframe import RawFunction, RawSection

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

CIE: Final = cie_of(AMD64)
CFA_63: Final = b"\x00\x03\x3f"


def cfa_offset(number: int) -> bytes:
    return b"\x0e" + asm.uleb128(8 * number)


def nested(count: int) -> list[asm.Fde]:
    """Return FDEs, each inside the one before it, no two with the same rules."""
    return [asm.Fde(CIE, TEXT_VADDR + n, 4 * count - 2 * n, (cfa_offset(n + 2),)) for n in range(count)]


def one_over_all(count: int) -> list[asm.Fde]:
    small = [asm.Fde(CIE, TEXT_VADDR + 20 * n, 10, (cfa_offset(n + 2),)) for n in range(count)]
    return [asm.Fde(CIE, TEXT_VADDR, 40 * count, ()), *small]


def equal(count: int) -> list[asm.Fde]:
    return [asm.Fde(CIE, TEXT_VADDR, 64, (cfa_offset(n + 2),)) for n in range(count)]


def staggered(count: int) -> list[asm.Fde]:
    return [asm.Fde(CIE, TEXT_VADDR + n, count, (cfa_offset(n + 2),)) for n in range(count)]


SHAPES: Final = (nested, one_over_all, equal, staggered)


def file_with(fdes: list[asm.Fde], code_size: int) -> bytes:
    return linked_file(AMD64, fdes, codes=(Code(size=code_size),))


def check(data: bytes, *functions: RawFunction, version: int = 3) -> Verification:
    section = RawSection(functions, version)
    found: list[Verification] = []
    timed(lambda data: found.append(verify(load(data), decode(section.assemble(), section.vaddr))), data)
    return found[0]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_overlapping_fdes(shape: Callable[[int], list[asm.Fde]]) -> None:
    measured(target_file.run, file_with(shape(60), 60_000))
    data = file_with(shape(1_500), 60_000)
    results: list[Verification] = []
    # Ten times what it takes; the square of their number would take minutes.
    assert timed(lambda data: results.append(verify(convert(load(data)))), data) < 2
    assert (results[0].function_count, results[0].differences) == (1_500 + (shape is one_over_all), ())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_section_that_agrees_with_none_of_them(shape: Callable[[int], list[asm.Fde]]) -> None:
    """All the FDEs of an address are asked then, but no more than a few."""
    data = file_with(shape(1_500), 60_000)
    result = check(data, RawFunction(TEXT_VADDR, 60_000, CFA_63))
    wrong = [d for d in result.differences if d.kind == "wrong"]
    assert result.point_count <= len(wrong) <= MAX_CANDIDATES * result.point_count


def test_candidates_are_the_fdes_that_start_last() -> None:
    outer = asm.Fde(CIE, TEXT_VADDR, 64, (asm.def_cfa_offset(63),))
    few, many = (
        [outer, *(asm.Fde(CIE, TEXT_VADDR, 64, (cfa_offset(n + 20),)) for n in range(count))]
        for count in (MAX_CANDIDATES - 1, MAX_CANDIDATES)
    )
    for fdes, is_clean in ((few, True), (many, True), ([*many[1:], outer], False)):
        result = check(file_with(fdes, 64), RawFunction(TEXT_VADDR, 64, CFA_63))
        assert result.is_clean is is_clean


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 300])
def test_blocks_without_number(version: int, count: int) -> None:
    """Code without bytes in the file may be of any size, and so may functions of repeating blocks."""
    size = (1 << 31) - (1 << 20)
    data = file_with([asm.Fde(CIE, TEXT_VADDR, size, (cfa_offset(3),))], size)
    block_size = 0 if version == 1 else 1
    step = size // count
    functions = [
        RawFunction(TEXT_VADDR + step * n - (step * n) % 16, step, b"\x00\x03\x08", 1, 0x10, 0, block_size)
        for n in range(count)
    ]
    result = check(data, *functions, version=version)
    assert "CFA is rsp+24, the row has rsp+8" in {d.message for d in result.differences}
    assert result.point_count <= 3 * count


@pytest.mark.parametrize("version", [1, 2, 3])
def test_blocks_compare_like_the_first_of_them(version: int) -> None:
    """Where the truth changes, blocks are compared again; rows past a block's end hold nowhere."""
    fde = asm.Fde(CIE, TEXT_VADDR, 1 << 20, (asm.advance(40), asm.def_cfa_offset(16)))
    rows = b"\x00\x03\x08" + b"\x08\x03\x10" + b"\x20\x03\x10" * (version > 1)
    function = RawFunction(TEXT_VADDR, 1 << 20, rows, 2 + (version > 1), 0x10, 0, 16 if version > 1 else 0)
    result = check(file_with([fde], 1 << 20), function, version=version)
    assert [(d.vaddr - TEXT_VADDR, d.message) for d in result.differences if d.kind == "wrong"] == [
        (8, "CFA is rsp+8, the row has rsp+16"),
        (48, "CFA is rsp+16, the row has rsp+8"),
    ]
    assert result.point_count < 10


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("version", "flags"), [(1, 1), (2, 5), (3, 5)])
def test_readers_look_at_shared_rows_once(reader: str, version: int, flags: int) -> None:
    """Functions of thousands of rows each, which the section stores once: what readers make of them is asked once."""
    row_count, count = 16_000, 4_000
    # CFA = r10 + 8, a rule of flexible rows; the older versions have a row without data words.
    tail, info2 = (b"\x04\x53\x08", 1) if version == 3 else (b"\x00", 0)
    rows = b"".join(delta.to_bytes(2, "little") + tail for delta in range(row_count))
    functions = [RawFunction(TEXT_VADDR, 0x8000, rows, row_count, 0x01, info2)]
    functions += [
        RawFunction(TEXT_VADDR + 0x8000 * n, 0x8000, b"", row_count, 0x01, info2, fre_offset=0) for n in range(1, count)
    ]
    image = load(file_with([asm.Fde(CIE, TEXT_VADDR, 64)], 64))
    section = decode(RawSection(tuple(functions), version, flags=flags).assemble(), 0x30000)
    found: list[tuple[Verdict, ...]] = []
    # One by one, they are 64 million rows, which take minutes.
    assert timed(lambda _: found.append(judge(image, section, reader)), b"") < 2
    assert found[0]
