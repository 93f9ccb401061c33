# SPDX-License-Identifier: Apache-2.0
"""Small files that could make conversion, coverage and verification expensive: whole runs within the bound."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.arch import AMD64
from cfi2sframe.dwarf.instructions import CUTTER, Cutter
from cfi2sframe.errors import BudgetError
from tests.support import cfi_asm as asm
from tests.support.bounds import run_within_bound
from tests.support.raw_sframe import RawFunction, RawSection
from tests.support.samples import CODE, TEXT_VADDR, Code, cie_of, linked_file
from tests.test_demangle import conversions, substitutions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = pytest.mark.fuzz

CIE: Final = cie_of(AMD64)
NOP: Final = b"\x96"
PLT_VADDR: Final = 0x1000000
CODE_SIZE: Final = 1 << 24
VERBS: Final = (
    ("coverage", "--details"),
    ("coverage", "--json"),
    ("verify", "--would-be"),
    ("convert", "-O2"),
    ("convert", "-Os"),
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
def test_one_expression_of_many_rows(arguments: tuple[str, ...], tmp_path: Path) -> None:
    expression = b"\x77\x08" + NOP * 10_000
    rows = b"".join(b"\x41" + fp_saved_at(n % 2_000 + 2) for n in range(3_000))
    fde = asm.Fde(CIE, TEXT_VADDR, 1 << 20, (asm.def_cfa_expression(expression), rows))
    assert run(file_of(fde), tmp_path, *arguments).status == 0


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_many_holes_of_a_function_that_many_others_cut(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Its parts and holes are looked at for each piece that is left of it."""
    unsayable = b"\x0f\x05\x77\x28\x06\x23\x08"  # def_cfa_expression: breg7 40; deref; plus_uconst 8
    rows = b"".join(b"\x44" + (unsayable if n % 2 else b"\x0c\x07" + asm.uleb128(8)) for n in range(12_000))
    others = [asm.Fde(CIE, TEXT_VADDR + 1 + 16 * n, 2) for n in range(2_900)]
    assert run(file_of(asm.Fde(CIE, TEXT_VADDR, 1 << 17, (rows,)), *others), tmp_path, *arguments).status == 0


def test_a_damaged_cie_of_many_functions(tmp_path: Path) -> None:
    cie = cie_of(AMD64)._replace(instructions=(bytes(25_000) + b"\x17",))
    fdes = [asm.Fde(cie, TEXT_VADDR + 64 * n, 64, (fp_saved_at(n + 2),)) for n in range(1_500)]
    result = run(file_of(asm.Fde(CIE, TEXT_VADDR + (1 << 20), 64), *fdes), tmp_path, "coverage", "--details")
    assert result.status == 0
    assert result.out.count("in its CIE: unknown call frame instruction 0x17") == 1_500


def test_states_that_all_differ(tmp_path: Path) -> None:
    """Each remembers all those before it, in two bytes of the input. The cache of programs would keep them."""
    fde = asm.Fde(CIE, TEXT_VADDR, 1 << 20, (b"\x41\x0a" * 130_000,))
    assert run(file_of(fde), tmp_path, "verify", "--would-be").status == 0
    others = [
        asm.Fde(CIE, TEXT_VADDR + (1 << 20) + 64 * n, 64, (fp_saved_at(n + 2),)) for n in range(Cutter().patience)
    ]
    result = run(file_of(*others, fde), tmp_path, "verify", "--would-be")
    assert result.status == 3
    assert "error: the rows that differ from one another take more" in result.err


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
    """RIP times 0 is 0 everywhere, but only evaluation can tell."""
    nothing = bytes.fromhex("8000 30 1e 22")
    honest = file_of(asm.Fde(CIE, TEXT_VADDR, 64), stub_fde(40, nothing), more=(plt(lazy_stubs(40)),))
    assert convert(load(honest)).is_whole
    data = file_of(asm.Fde(CIE, TEXT_VADDR, 64), stub_fde(200, nothing * 600), more=(plt(lazy_stubs(200)),))
    result = run(data, tmp_path, "coverage")
    assert result.status == 3
    message = f"error: the expressions over PLT stubs take more work than {len(data):,} bytes of input may\n"
    assert result.err.endswith(message)


def test_names_of_functions_that_are_left_out(tmp_path: Path) -> None:
    """Mangled names that would take years to read stay as they are, and so do those that many long texts would be."""
    cie = cie_of(AMD64, asm.def_cfa_expression(b"\x30"))
    names = [*(substitutions(35).replace("_Z1f", f"_Z2f{n}") for n in range(9)), conversions(40)]
    fdes = [asm.Fde(cie, TEXT_VADDR + 64 * n, 64) for n in range(len(names))]
    symbols = [asm.Symbol(name, TEXT_VADDR + 64 * n, 64) for n, name in enumerate(names)]
    data = linked_file(
        AMD64, (asm.Fde(CIE, TEXT_VADDR + (1 << 20), 64), *fdes), codes=(Code(size=CODE_SIZE),), symbols=(*symbols,)
    )
    result = run(data, tmp_path, "coverage", "--details")
    assert result.status == 0
    assert all(f"in .text  {name}: CFA" in result.out for name in names)


@pytest.mark.parametrize("code", [b"\x90", b"\x50"], ids=["nop", "push"])
def test_stubs_that_are_none(code: bytes, tmp_path: Path) -> None:
    """They are left out with the reason, and other functions are converted as without them."""
    result = run(file_of(asm.Fde(CIE, TEXT_VADDR, 64), more=(plt(code * 150_001),)), tmp_path, "coverage")
    assert result.status == 0
    assert "150,001 bytes of PLT stubs at 0x1000000 in .plt: no block of one size repeats" in result.out
    assert ", and the only function with CFI\n" in result.out


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
    assert (result.status, "error: the PLT stubs take more" in result.err) == (3, True)


# --- Compressed sections --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 12])
def test_compressed_rows(count: int, tmp_path: Path) -> None:
    """Four megabytes of rows, in one section or in several of the same bytes."""
    row = b"\x41\x0e\x10\x41\x0e\x08"
    fde = asm.Fde(CIE, 0, 1 << 22, (row * (4_000_000 // count // len(row)),))
    plain = asm.EhFrame((fde,), debug_frame=True).assemble()
    header = struct.pack("<IIQQ", 1, 0, len(plain), 8)
    frame = asm.Section(".debug_frame", header + zlib.compress(plain, 9), 1, 0x800)
    text = asm.Section(".text", b"", 8, CODE, TEXT_VADDR, nobits_size=64)
    segments = (asm.Segment(1, 5, (".text",)),)
    data = asm.elf_file(AMD64.elf_machine, (text, *[frame] * count), file_type=3, segments=segments)
    result = run(data, tmp_path, "coverage")
    assert result.status == 3
    assert "bytes of .debug_frame before its compression take more work than" in result.err


# --- Sections that are there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_functions_of_blocks_that_repeat(version: int, tmp_path: Path) -> None:
    """Blocks of a byte, with a thousand rows that hold nowhere, or (version 1) wherever the PC has their bits."""
    row_count, size = 1_400, 30_000
    rows = b"".join(struct.pack("<HBB", n, 3, 8) for n in range(row_count))
    function = RawFunction(TEXT_VADDR, size, rows, row_count, 0x11, 0, 0 if version == 1 else 1)
    section = RawSection((function,), version, vaddr=0x200000).assemble()
    fde = asm.Fde(CIE, TEXT_VADDR, size)
    data = file_of(fde, more=(asm.Section(".sframe", section, 0x6FFFFFF4, 2, 0x200000),))
    result = run(data, tmp_path, "verify")
    # Of the rows that versions 2 and 3 have, all but one start at or after the block's end.
    assert (result.status, result.out.count("\n")) == ((0, 0) if version == 1 else (1, 1))


@pytest.mark.parametrize("arguments", [("dump",), ("dump", "--json")], ids=" ".join)
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
    assert (result.status, result.out) == (3, "")
    assert result.err.endswith(f"error: the rows to print take more work than {len(data):,} bytes of input may\n")


# --- Ranges, and names ----------------------------------------------------------------------------------------------


def test_candidates_of_ranges() -> None:
    """Where all rows recur, so do all ranges that begin at each of them, but only up to a number of rows."""
    rows = b"\x41\x0e\x10\x41\x0e\x18\x41\x0e\x08"
    fdes = [asm.Fde(CIE, TEXT_VADDR + (1 << 20) * n, 1 << 18, (rows * 2_000, fp_saved_at(n + 2))) for n in range(3)]
    image = load(file_of(*fdes))
    apart, split = convert(image, Options(level=1)), convert(image, Options(level=2))
    assert len(split.data) < len(apart.data) / 3
    assert max(len(body.starts) for body in split.section.bodies) <= 16


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


@pytest.mark.parametrize(("level", "version"), [("-O2", "3"), ("-Os", "2")])
@pytest.mark.parametrize("name", STRETCHES)
def test_stretches_of_rows_that_recur(name: str, level: str, version: str, tmp_path: Path) -> None:
    fdes, start = [], TEXT_VADDR
    for number, rows in enumerate(STRETCHES[name]):
        size = rows.count(b"\x41") + 2
        fdes.append(asm.Fde(CIE, start, size, (rows, fp_saved_at(number % 50 + 2))))
        start += size
    assert run(file_of(*fdes), tmp_path, "convert", level, "--sframe-version", version).status == 0


@pytest.mark.parametrize("arguments", VERBS[:2], ids=" ".join)
def test_a_long_name_of_many_functions(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A section's name, in the account of each function that is left out of it."""
    cie = cie_of(AMD64, asm.def_cfa_expression(NOP))
    fdes = [asm.Fde(cie, TEXT_VADDR + 64 * n, 64, (fp_saved_at(n + 2),)) for n in range(1_500)]
    data = linked_file(AMD64, fdes, codes=(Code(size=CODE_SIZE, name=".text" + "\x1b" * 40_000),))
    result = run(data, tmp_path, *arguments)
    assert result.status == 3
    assert result.err.endswith(
        f"error: the names in the account take more work than {len(data):,} bytes of input may\n"
    )


def test_a_budget_that_is_exhausted_refuses_the_file_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damage of an FDE, by which others would be written without it."""
    monkeypatch.setattr(CUTTER, "patience", 0)
    fdes = [asm.Fde(CIE, TEXT_VADDR + (1 << 20), 64), asm.Fde(CIE, TEXT_VADDR, 1 << 20, (b"\x41\x0a" * 130_000,))]
    image = load(file_of(*fdes))
    with pytest.raises(BudgetError, match=rf"take more \w+ than {len(image.data):,} bytes of input may$"):
        convert(image)
