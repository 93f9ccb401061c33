# SPDX-License-Identifier: Apache-2.0
"""From a file to a section: places, order, cutting, splitting, sharing, and what becomes of damage."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import cfi2sframe
from cfi2sframe import Conversion, load
from cfi2sframe.abi import AARCH64_LE, AMD64, ARCHES, S390X, Arch
from cfi2sframe.api import convert, verify
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import RequestError
from cfi2sframe.report.coverage import account
from cfi2sframe.sframe.read import DecodedSection, read_section
from cfi2sframe.why import Reason, Why
from tests.support.conversion.sums import check_sums, convert_checked
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked, linked_file, object_file, push_fp

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "testdata" / "golden"


def decoded(conversion: Conversion) -> DecodedSection:
    return read_section(conversion.data, conversion.section_vaddr)


def places(conversion: Conversion) -> list[tuple[int, int]]:
    """Return the start, counted from the code's, and the size of each function as a reader finds them."""
    return [(f.start_vaddr - TEXT_VADDR, f.size) for f in decoded(conversion).functions]


def leaf(start: int, size: int = 0x10, *instructions: asm.Instruction) -> asm.Fde:
    return asm.Fde(cie_of(AMD64), TEXT_VADDR + start, size, instructions)


# Versions and places


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_every_version_of_every_abi(arch: Arch) -> None:
    image = linked(arch, push_fp(arch))
    for version in range(arch.first_version, 4):
        for errata in (0, 1, 2) if version == 2 else (None,):
            conversion = convert_checked(image, Options(version, errata))
            header = decoded(conversion).header
            assert (header.version, header.byte_order, header.abi_id) == (version, arch.byte_order, arch.abi_id)
            assert header.start_is_pcrel == (version == 3 or (version == 2 and errata != 0))
            assert decoded(conversion).is_sorted
            assert places(conversion) == [(0, 32)]
            assert verify(image, decoded(conversion)).is_clean


@pytest.mark.parametrize(
    ("size", "vaddr"), [(0x1000, 0x30000), (0xFFFF, 0x30000), (0x10000, 0x30000), (0x10001, 0x40000)]
)
def test_the_default_address(size: int, vaddr: int) -> None:
    """The first boundary of 64 KiB past the last PT_LOAD."""
    assert convert_checked(linked(AMD64, leaf(0), code_size=size)).section_vaddr == vaddr


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("vaddr", [0, 0x12345, TEXT_VADDR + 0x800, 0x7FFF0000])
def test_a_given_address(version: int, vaddr: int) -> None:
    conversion = convert_checked(linked(AMD64, leaf(0), leaf(0x100)), Options(version, section_vaddr=vaddr))
    assert conversion.section_vaddr == vaddr
    assert places(conversion) == [(0, 16), (0x100, 16)]


def test_an_address_out_of_reach() -> None:
    image = linked(AMD64, leaf(0))
    with pytest.raises(RequestError, match=r"too far from \.sframe at 0x200000000 for the 32-bit starts of version 2"):
        convert_checked(image, Options(2, section_vaddr=0x200000000))
    assert places(convert_checked(image, Options(3, section_vaddr=0x200000000))) == [(0, 16)]


def test_requests_that_cannot_be_met() -> None:
    with pytest.raises(RequestError, match=r"^sample: SFrame version 1 does not define s390x; version 2 does$"):
        convert_checked(linked(S390X, push_fp(S390X)), Options(1))
    with pytest.raises(RequestError, match=r"^sample: no \.debug_frame section$"):
        convert_checked(linked(AMD64, leaf(0)), Options(source="debug_frame"))


VADDRS = "an address from 0 to 0xffffffffffffffff or None"
NO_OPTIONS: dict[str, tuple[tuple[object, ...], str]] = {
    "version": ((0, 4, -1, True, 2.0, "3", None), "1, 2 or 3"),
    "errata": ((7, -1, True, 1.0, "2"), "0, 1, 2 or None"),
    "source": (
        ("foo", ".eh_frame", "", 0, b"eh_frame"),
        "'eh_frame', 'debug_frame', 'gopclntab', 'debug_file', 'code' or None",
    ),
    "section_vaddr": ((-5, 1 << 64, 1 << 70, True, 4096.0, "0x1000"), VADDRS),
    "level": ((9, -1, False, 1.0, "1", "s"), "0, 1, 2 or None"),
}


def test_the_errata_that_glibc_reads_are_the_default() -> None:
    assert convert_checked(linked(AMD64, leaf(0)), Options(version=2)).target.errata == 1


def test_each_option_is_checked() -> None:
    assert set(NO_OPTIONS) == set(Options._fields)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (values, _) in NO_OPTIONS.items() for value in values]
)
def test_options_that_do_not_exist(name: str, value: object) -> None:
    """The library accepts what the command line accepts, and names the choices for anything else."""
    options = Options(**{name: value})  # type: ignore[arg-type]
    message = f"^{re.escape(f'{name} is {value!r}; it has to be {NO_OPTIONS[name][1]}')}$"
    image = linked(AMD64, leaf(0))
    with pytest.raises(RequestError, match=message):
        cfi2sframe.convert(image, **options._asdict())
    with pytest.raises(RequestError, match=message):
        convert_image(image, options)
    if name == "source":
        section = decoded(convert_checked(image))
        with pytest.raises(RequestError, match=message):
            verify(image, section, source=options.source)


# Order, overlaps, duplicates


def test_linked_files_are_sorted() -> None:
    conversion = convert_checked(linked(AMD64, leaf(0x40), leaf(0), leaf(0x20)))
    assert places(conversion) == [(0, 16), (0x20, 16), (0x40, 16)]
    assert tuple(piece.origin for piece in conversion.pieces) == (1, 2, 0)


@pytest.mark.parametrize(("level", "expected"), [(1, [(0, 16), (16, 16)]), (2, [(0, 32)])])
def test_level_2_joins_equal_neighbours(level: Literal[1, 2], expected: list[tuple[int, int]]) -> None:
    conversion = convert_checked(linked(AMD64, leaf(0), leaf(16)), Options(level=level))
    assert places(conversion) == expected


def test_objects_keep_the_order_of_the_source() -> None:
    """Every section of an object lies at 0 as far as the raw bytes are concerned, and nothing is sorted."""
    fdes = {".text.b": (push_fp(AMD64, 0x20), push_fp(AMD64, 0)), ".text.a": (push_fp(AMD64, 0),)}
    image = load(object_file(AMD64, fdes), "in.o")
    conversion = convert_checked(image)
    section = decoded(conversion)
    assert conversion.section_vaddr == 0
    assert [f.start_vaddr for f in section.functions] == [0x20, 0, 0]
    assert not section.is_sorted
    assert verify(convert(image)).is_clean


def test_overlaps_are_cut() -> None:
    outer = leaf(0, 0x40, asm.advance(4), asm.def_cfa_offset(16), asm.advance(0x2C), asm.def_cfa_offset(24))
    image = linked(AMD64, outer, leaf(0x10, 0x10, asm.def_cfa_offset(32)))
    conversion = convert_checked(image, Options(level=1))
    assert places(conversion) == [(0, 0x10), (0x10, 0x10), (0x20, 0x20)]
    rows = [[(row.start_delta, row.cfa and row.cfa.offset) for row in function] for function in decoded(conversion)]
    assert rows == [[(0, 8), (4, 16)], [(0, 32)], [(0, 16), (0x10, 24)]]
    check_sums(conversion)
    assert verify(convert(image)).is_clean


def test_rows_after_the_end_do_not_count() -> None:
    """Rules from after the function's end are never in force, so they must not leave the function out either."""
    after_end = (asm.advance(0x10), asm.def_cfa_expression(b"\x30"))
    image = linked(AMD64, leaf(0, 0x10, *after_end), leaf(0x20, 0x11, *after_end))
    conversion = convert_checked(image)
    assert places(conversion) == [(0, 0x10), (0x20, 0x10)]
    assert [(why.reason, why.start_delta) for why in why_not(conversion)] == [(Reason.CFA_EXPRESSION, 0x10)]
    assert verify(convert(image)).is_clean


def test_set_loc_is_interpreted_for_each_function() -> None:
    def stepping(start: int) -> asm.Fde:
        return asm.Fde(
            cie_of(AMD64)._replace(fde_encoding=0x03),
            TEXT_VADDR + start,
            0x20,
            (asm.set_loc(TEXT_VADDR + 8), asm.def_cfa_offset(16)),
        )

    conversion = convert_checked(linked(AMD64, stepping(0), stepping(4)), Options(level=1))
    functions = decoded(conversion).functions
    assert [[row.start_delta for row in f.rows] for f in functions] == [[0], [0, 4]]
    # The first function is cut where the second starts.
    assert places(conversion) == [(0, 4), (4, 0x20)]


# CFI that standards leave open


def why_not(conversion: Conversion) -> list[Why]:
    """Return why functions and parts of them are left out: the reason, the detail, and where."""
    return [piece.said for piece in conversion.pieces if isinstance(piece.said, Why)]


def converted(arch: Arch, cie: asm.Cie, *instructions: asm.Instruction, size: int = 32) -> Conversion:
    image = linked(arch, asm.Fde(cie, TEXT_VADDR, size, instructions))
    conversion = convert_checked(image)
    assert not conversion.data or verify(image, decoded(conversion)).is_clean
    return conversion


def test_a_register_after_an_expression() -> None:
    """clang: the CFA is SP + 16 + 8 * VG, and SP + 16 to unwinders after the last instruction."""
    vectors = asm.def_cfa_expression(b"\x8f\x10\x92\x2e\x00\x38\x1e\x22")
    code = (asm.advance(4), asm.def_cfa_offset(16), asm.advance(4), vectors, asm.advance(4), asm.def_cfa_register(31))
    conversion = converted(AARCH64_LE, cie_of(AARCH64_LE), *code)
    text = "breg31 16; bregx 46 0; lit8; mul; plus"
    assert why_not(conversion) == [(Reason.CFA_EXPRESSION, text, 8), (Reason.CFA_OFFSET_UNKNOWN, "", 12)]
    assert places(conversion) == [(0, 8)]
    # The CIE's only rule of the CFA is an expression.
    cie = cie_of(AMD64)._replace(instructions=(asm.def_cfa_expression(b"\x77\x08"), asm.offset(16, 1)))
    conversion = converted(AMD64, cie, asm.advance(4), asm.def_cfa_register(6))
    assert why_not(conversion) == [(Reason.CFA_OFFSET_UNKNOWN, "", 4)]
    assert [str(row.state) for row in decoded(conversion).functions[0]] == ["cfa=r7+8 ra=c-8 fp=u"]


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_fde_that_is_longer_than_its_section(in_parts: bool) -> None:  # noqa: FBT001
    unsaid = asm.def_cfa_expression(b"\x77\x08\x06\x06")
    code = (*((unsaid, asm.advance(4), asm.def_cfa(7, 24)) if in_parts else ()), asm.advance(4), asm.def_cfa_offset(16))
    conversion = converted(AMD64, cie_of(AMD64), *code, size=0x1001)
    assert len(why_not(conversion)) == in_parts
    assert [start + size for start, size in places(conversion)][-1] == 0x1000
    assert not conversion.is_whole
    *holes, found = account(conversion).of_kind("in part")
    assert (len(holes), found.reason, found.row_address) == (in_parts, "PAST_CODE", TEXT_VADDR + 0x1000)
    assert (found.function_size, found.address, found.size) == (0x1001, TEXT_VADDR + 0x1000, 1)
    # One that ends with its section is whole, and one that cannot be expressed has that for its reason.
    assert converted(AMD64, cie_of(AMD64), *code, size=0x1000).is_whole is not in_parts
    skips = why_not(converted(AMD64, cie_of(AMD64), unsaid, size=0x1001))
    assert [skip.reason for skip in skips] == [Reason.CFA_EXPRESSION]


# Sizes


def many_rows(count: int) -> asm.Fde:
    steps: list[asm.Instruction] = []
    for number in range(1, count):
        steps += [asm.advance(1), asm.def_cfa_offset(16 if number % 2 else 8)]
    return leaf(0, count, *steps)


@pytest.mark.sampled
@pytest.mark.parametrize(("count", "sizes"), [(65536, [65535, 1]), (65535, [65535]), (131071, [65535, 65535, 1])])
def test_version_3_splits_functions_of_many_rows(count: int, sizes: list[int]) -> None:
    """Version 3 counts a function's rows in 16 bits."""
    image = linked(AMD64, many_rows(count), leaf(0x30000), code_size=0x40000)
    conversion = convert_checked(image, Options(level=1))
    assert [size for _, size in places(conversion)] == [*sizes, 16]
    assert check_sums(conversion).row_count == count + 1
    assert verify(image, decoded(conversion)).is_clean
    coverage = check_sums(conversion)
    assert (coverage.described_count, coverage.record_count) == (2, len(sizes) + 1)


def test_the_largest_function() -> None:
    """Sizes have 32 bits in every version; a larger function is left out, with its reason."""
    cie = cie_of(AMD64)._replace(fde_encoding=0x1C)
    limit = 1 << 32
    fdes = (
        asm.Fde(cie, TEXT_VADDR, limit - 1, (asm.advance(limit - 2), asm.def_cfa_offset(16))),
        asm.Fde(cie, TEXT_VADDR + limit, limit, (asm.advance(limit - 2), asm.def_cfa_offset(16))),
        asm.Fde(cie, TEXT_VADDR + 2 * limit, 16),
    )
    image = linked(AMD64, *fdes, code_size=3 * limit)
    conversion = convert_checked(image)
    assert places(conversion) == [(0, limit - 1), (2 * limit, 16)]
    ((entry, skip),) = conversion.skips
    assert entry.size == limit
    assert skip == (Reason.FUNCTION_TOO_LARGE, "4,294,967,296 bytes", 0)
    assert verify(image, decoded(conversion)).is_clean


def test_nothing_to_describe() -> None:
    conversion = convert_checked(linked(AMD64, leaf(0, 16, asm.def_cfa_expression(b"\x30"))))
    assert conversion.data == b""
    assert not conversion.is_whole


# Determinism, and the package's face


PRINTER = """
import sys, cfi2sframe
for path in sys.argv[1:]:
    image = cfi2sframe.load(path)
    for version in (2, 3):
        conversion = cfi2sframe.convert(image, version)
        print(path, version, conversion.data.hex(), cfi2sframe.account(conversion))
"""


def test_hash_seeds_change_nothing(tmp_path: Path) -> None:
    """The same conversion in processes with different hash seeds gives the same bytes and the same account."""
    overlapping = [leaf(8 * n, 0x30, asm.def_cfa_offset(8 + 8 * n)) for n in range(20)]
    (tmp_path / "overlapping").write_bytes(linked_file(AMD64, overlapping))
    paths = [str(tmp_path / "overlapping"), *map(str, sorted(GOLDEN.glob("*.o")))]
    assert len(paths) > 10
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINTER, *paths],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == 2 * len(paths)


def test_several_executable_sections() -> None:
    codes = (Code(TEXT_VADDR, 0x10, ".text"), Code(TEXT_VADDR + 0x1000, 0x20, ".text.hot"))
    image = load(linked_file(AMD64, (leaf(0x1000), leaf(0)), codes=codes), "two")
    assert places(convert_checked(image)) == [(0, 16), (0x1000, 16)]
    # A function that leaves its section is cut there; one that begins outside of code describes none.
    image = load(linked_file(AMD64, (leaf(0, 0x11), leaf(0x10), leaf(0x1000)), codes=codes), "two")
    assert places(convert_checked(image)) == [(0, 16), (0x1000, 16)]
