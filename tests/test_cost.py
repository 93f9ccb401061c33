# SPDX-License-Identifier: Apache-2.0
"""Small files that could make conversion, coverage and verification expensive: whole runs within the bound."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from tests.support import cfi_asm as asm
from tests.support.bounds import run_within_bound
from tests.support.raw_sframe import RawFunction, RawSection
from tests.support.samples import CODE, TEXT_VADDR, Code, cie_of, linked_file, object_file, push_fp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

CIE: Final = cie_of(AMD64)
NOP: Final = b"\x96"
PLT_VADDR: Final = 0x1000000
CODE_SIZE: Final = 1 << 24
VERBS: Final = (
    ("coverage", "--top", "all"),
    ("coverage", "--format", "json"),
    ("verify", "--would-be"),
    ("convert", "-O2"),
)


def run(data: bytes, tmp_path: Path, *arguments: str) -> BoundedRun:
    path = tmp_path / "input.elf"
    path.write_bytes(data)
    target = ("-o", tmp_path / "out.sframe") if arguments[0] == "convert" else ()
    return run_within_bound(*arguments, path, *target, input_size=len(data))


def file_of(*fdes: asm.Fde, more: tuple[asm.Section, ...] = ()) -> bytes:
    return linked_file(AMD64, fdes, codes=(Code(size=CODE_SIZE),), more=more)


def fp_saved_at(number: int) -> bytes:
    return b"\x86" + asm.uleb128(number)


# --- Expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_one_expression_of_many_functions_that_are_left_out(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Each has rows of its own; none of them repeats another."""
    cie = cie_of(AMD64, asm.def_cfa_expression(NOP * 12_000))
    fdes = [asm.Fde(cie, TEXT_VADDR + 64 * n, 64, (fp_saved_at(n + 2),)) for n in range(800)]
    result = run(file_of(asm.Fde(CIE, TEXT_VADDR + (1 << 20), 64), *fdes), tmp_path, *arguments)
    assert result.status == 0
    if arguments[0] == "coverage":
        assert result.out.count("; and 11,968 more bytes") == 800


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_many_holes_of_a_function_that_many_others_cut(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Its parts and holes are looked at for each piece that is left of it."""
    unsayable = b"\x0f\x05\x77\x28\x06\x23\x08"  # def_cfa_expression: breg7 40; deref; plus_uconst 8
    rows = b"".join(b"\x44" + (unsayable if n % 2 else b"\x0c\x07" + asm.uleb128(8)) for n in range(12_000))
    others = [asm.Fde(CIE, TEXT_VADDR + 1 + 16 * n, 2) for n in range(2_900)]
    assert run(file_of(asm.Fde(CIE, TEXT_VADDR, 1 << 17, (rows,)), *others), tmp_path, *arguments).status == 0


# --- Stubs ----------------------------------------------------------------------------------------------------------


def plt(data: bytes, name: str = ".plt", vaddr: int = PLT_VADDR) -> asm.Section:
    return asm.Section(name, data, 1, CODE, vaddr, align=1)


def lazy_stubs(count: int) -> bytes:
    blocks = [
        bytes.fromhex("ff2500100000 68") + struct.pack("<I", n) + b"\xe9" + struct.pack("<i", -16 * (n + 2))
        for n in range(count)
    ]
    return bytes.fromhex("ff3502100000 ff2504100000 0f1f4000") + b"".join(blocks)


def stub_fde(count: int, more: bytes) -> asm.Fde:
    """Return the FDE of stubs as GNU ld writes it, with more operations that change nothing."""
    expression = bytes.fromhex("7708 8000 3f1a 3b2a332422") + more
    rows = (asm.def_cfa_offset(16), asm.advance(6), asm.def_cfa_offset(24), asm.advance(10))
    return asm.Fde(CIE, PLT_VADDR, 16 * (count + 1), (*rows, asm.def_cfa_expression(expression)))


def test_the_expression_of_stubs_at_each_of_their_bytes(tmp_path: Path) -> None:
    """RIP times 0 is 0 everywhere; instructions decide."""
    nothing = bytes.fromhex("8000 30 1e 22")
    honest = file_of(asm.Fde(CIE, TEXT_VADDR, 64), stub_fde(40, nothing), more=(plt(lazy_stubs(40)),))
    assert convert(load(honest)).is_whole
    data = file_of(asm.Fde(CIE, TEXT_VADDR, 64), stub_fde(200, nothing * 600), more=(plt(lazy_stubs(200)),))
    assert run(data, tmp_path, "coverage").is_answered(0)


@pytest.mark.slow
def test_sections_of_stubs_that_share_their_bytes(tmp_path: Path) -> None:
    """A header of 64 bytes each names all of the code."""
    count, size = 300, 40_000
    sections = tuple(plt(bytes(1), f".plt.{n % 7}", PLT_VADDR + 0x10000 * n) for n in range(count))
    data = bytearray(
        file_of(asm.Fde(CIE, TEXT_VADDR, 64), more=(*sections, plt(lazy_stubs(size // 16), ".plt.all", 16)))
    )
    image = load(bytes(data))
    whole = next(section for section in image.sections if section.name == ".plt.all")
    headers = struct.unpack_from("<Q", data, 40)[0]
    for section in image.sections:
        if section.name.startswith(".plt.") and section is not whole:
            struct.pack_into("<QQ", data, headers + 64 * section.index + 24, whole.file_offset, whole.size)
    result = run(bytes(data), tmp_path, "coverage")
    assert result.is_answered(0)


def test_code_without_cfi_in_many_sections(tmp_path: Path) -> None:
    """Each section is compared with the ranges in it, not with those of the file."""
    data = object_file(AMD64, {f".text.f{n}": (push_fp(AMD64, 0),) for n in range(4_000)})
    assert run(data, tmp_path, "coverage", "--from", "code").is_answered(0)


# --- Sections that are there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("dump",), ("dump", "--format", "json")], ids=" ".join)
def test_rows_of_many_functions(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """The section stores them once, and a dump would print them for each."""
    row_count = 5_000
    rows = b"".join(struct.pack("<HB", n, 0) for n in range(row_count))
    functions = [RawFunction(TEXT_VADDR, 0x10000, rows, row_count, 1)]
    functions += [
        RawFunction(TEXT_VADDR + 0x10000 * n, 0x10000, b"", row_count, 1, fre_offset=0) for n in range(1, 600)
    ]
    data = RawSection(tuple(functions)).assemble()
    result = run(data, tmp_path, *arguments)
    assert (result.is_answered(), result.out) == (True, "")


# --- Ranges, and names ----------------------------------------------------------------------------------------------


def pushes(first: int, last: int) -> bytes:
    """Return the rows of some pushes, a byte of code each."""
    return b"".join(b"\x41\x0e" + asm.uleb128(16 + 8 * n) for n in range(first, last))


#: Functions that follow one another, so that ranges may be cut anywhere: the rows of each, a byte of code for each row.
STRETCHES: Final = {
    "two rows by turns": [b"\x41\x0e\x10\x41\x0e\x08" * 10_000] * 3,
    "each is the beginning of the next": [pushes(0, n) for n in range(1, 250)],
    "each is the end of the next": [pushes(250 - n, 250) for n in range(1, 250)],
    "each has most rows of the next": [pushes(n, 200 + n) for n in range(100)],
    "all rows differ": [pushes(0, 20_000)],
    "equal functions": [pushes(0, 8)] * 5_000,
}


@pytest.mark.parametrize("version", ["3", "2"])
@pytest.mark.parametrize("name", STRETCHES)
def test_stretches_of_rows_that_recur(name: str, version: str, tmp_path: Path) -> None:
    fdes, start = [], TEXT_VADDR
    for number, rows in enumerate(STRETCHES[name]):
        size = rows.count(b"\x41") + 2
        fdes.append(asm.Fde(CIE, start, size, (rows, fp_saved_at(number % 50 + 2))))
        start += size
    assert run(file_of(*fdes), tmp_path, "convert", "-O2", "--sframe-version", version).status == 0
