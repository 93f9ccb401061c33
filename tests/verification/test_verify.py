# SPDX-License-Identifier: Apache-2.0
"""Verification finds whatever is wrong, missing, extra, or against what readers demand, and says so.

Sections are put together by hand: nothing of the writer is trusted. `test_columns` has differences at any addresses.
"""

import struct

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64, Arch
from cfi2sframe.api import convert, verify
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.read import read_section
from cfi2sframe.verification.verify import Difference, verify_section
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked, linked_file, object_file, push_fp
from tests.support.sframe.raw_sframe import RawFunction, RawSection
from tests.support.stubs.handmade import lazy_stubs
from tests.support.verification import AARCH64, check, one_row, said, truth

PLT_VADDR = TEXT_VADDR + 0x2000
ROWS = "00 03 08  04 05 10 f0  08 04 10 f0"
PUSH = RawFunction(TEXT_VADDR, 0x20, bytes.fromhex(ROWS), 3)
LEAF = RawFunction(TEXT_VADDR + 0x40, 0x10)
GOOD = RawSection((PUSH, LEAF))


@pytest.fixture(scope="module")
def image() -> ElfImage:
    return linked(AMD64, push_fp(AMD64), asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x40, 0x10))


def with_rows(text: str, count: int = 3, **changes: int) -> RawSection:
    push = PUSH._replace(rows=bytes.fromhex(text), row_count=count)._replace(**changes)  # type: ignore[arg-type]
    return RawSection((push, LEAF))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_good_section(image: ElfImage, version: int) -> None:
    result = check(image, GOOD._replace(version=version))
    assert result.is_clean
    assert result == (2, 4, 0, (), True, (), (4, 0, 0, 0, 0))


def test_rows_may_repeat(image: ElfImage) -> None:
    """GNU as writes equal rows after each other; that is no difference in meaning."""
    assert said(image, with_rows("00 03 08  02 03 08  04 05 10 f0  08 04 10 f0", 4)) == []


MISSING = "no SFrame FDE, though this version can express it"


def at(start: int, size: int, function: RawFunction = LEAF) -> RawFunction:
    return function._replace(start=TEXT_VADDR + start, size=size)


# fmt: off
WRONG: dict[str, tuple[RawSection, *tuple[str, ...]]] = {
    "CFA offset": (with_rows("00 03 08  04 05 18 f0  08 04 10 f0"), "wrong +0x4 CFA is rsp+16, the row has rsp+24"),
    "FP missing": (with_rows("00 03 08  04 05 10 f0  08 02 10"), "wrong +0x8 FP is c-16, the row has unchanged"),
    "FP extra": (with_rows("00 05 08 f0  04 05 10 f0  08 04 10 f0"),
                 "wrong +0x0 FP is unspecified, the row has c-16"),
    "a row too late": (with_rows("00 03 08  05 05 10 f0  08 04 10 f0"), "wrong +0x4 CFA is rsp+16, the row has rsp+8"),
    "the first row missing": (with_rows("04 05 10 f0  08 04 10 f0", 2),
                              "invariant +0x0 the first row starts at 4", "wrong +0x0 no row is in force"),
    "a function missing": (RawSection((PUSH,)), f"missing +0x40 {MISSING}"),
    "a function extra": (RawSection((PUSH, LEAF, at(0x60, 8))), "extra +0x60 no CFI for 8 bytes of a function"),
    "a function too long": (RawSection((at(0, 0x24, PUSH), LEAF)), "extra +0x20 no CFI for 4 bytes of a function"),
    "one function over two": (RawSection((at(0, 0x50, PUSH),)), "extra +0x20 no CFI for 32 bytes of a function",
                              "wrong +0x40 CFA is rsp+8, the row has rbp+16"),
    "PCMASK": (RawSection((PUSH._replace(info=0x10, repeat_size=16), LEAF)),
               "wrong +0x10 CFA is rbp+16, the row has rsp+8", "wrong +0x14 CFA is rbp+16, the row has rsp+16"),
}
# fmt: on


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(image: ElfImage, name: str) -> None:
    section, *found = WRONG[name]
    assert said(image, section) == found


# What a version cannot express


def test_inexpressible_functions_are_rightly_absent(image: ElfImage) -> None:
    image = linked(AMD64, push_fp(AMD64), asm.Fde(cie_of(AMD64, asm.def_cfa_register(3)), TEXT_VADDR + 0x40, 0x10))
    result = check(image, RawSection((PUSH,), version=2))
    assert (result.differences, result.left_out_count, result.function_count) == ((), 1, 2)
    # Version 3 can express it, so it has to.
    assert said(image, RawSection((PUSH,))) == ["missing +0x40 no SFrame FDE, though this version can express it"]


def in_parts(*instructions: asm.Instruction) -> ElfImage:
    """Return a file with a function of 0x20 bytes that version 2 cannot express from +8 to +0x10."""
    rules = (asm.advance(8), asm.def_cfa_register(3), asm.advance(8), asm.def_cfa_register(7), *instructions)
    return linked(AMD64, asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x20, rules))


def test_holes_are_rightly_absent() -> None:
    """Of a function that can be expressed in part, a section has the parts, or nothing as other producers do."""
    image = in_parts()
    before, after = RawFunction(TEXT_VADDR, 8), RawFunction(TEXT_VADDR + 16, 16)
    missing = ["missing +0x0 no SFrame FDE, though this version can express it"]
    result = check(image, RawSection((before, after), version=2))
    assert (result.differences, result.left_out_count) == ((), 1)
    assert said(image, RawSection((before,), version=2)) == missing
    assert said(image, RawSection((after,), version=2)) == missing
    assert said(image, RawSection((RawFunction(TEXT_VADDR, 4), after), version=2)) == missing
    elsewhere = RawFunction(TEXT_VADDR + 0x40, 8)
    assert said(image, RawSection((elsewhere,), version=2)) == ["extra +0x40 no CFI for 8 bytes of a function"]
    # Version 3 can express all of it.
    assert said(image, RawSection((before, after))) == missing
    assert said(image, RawSection((before._replace(size=12), after), version=2)) == [
        "wrong +0x8 CFA is rbx+8, the row has rsp+8"
    ]


def test_this_package_describes_the_parts() -> None:
    """What `convert` makes is held to all parts."""
    image = in_parts(asm.advance(8), asm.def_cfa_offset(16))
    for options in (Options(2), Options(3)):
        assert verify(convert_image(image, options)).is_clean
    # Nothing but another function: right for another producer, wrong for this package.
    others = read_section(RawSection((LEAF,), version=2).assemble(), 0x30000)
    for subject, is_missing in ((convert_image(image, Options(2)), True), (image, False)):
        assert ("missing" in {difference.kind for difference in verify(subject, others).differences}) is is_missing


def test_errata_of_version_2() -> None:
    """Rows with an undefined RA came with errata 2: a section without one may leave such functions out."""
    image = linked(AMD64, push_fp(AMD64), asm.Fde(cie_of(AMD64, asm.undefined(16)), TEXT_VADDR + 0x40, 0x10))
    assert said(image, RawSection((PUSH,), version=2)) == []
    assert said(image, RawSection((PUSH, LEAF._replace(rows=b"\0\0")), version=2)) == []


def test_an_fde_of_what_is_no_code_demands_nothing() -> None:
    image = linked(AMD64, push_fp(AMD64), asm.Fde(cie_of(AMD64), 0x1000, 8))
    assert said(image, RawSection((PUSH,))) == []


# Several FDEs for one address


def test_two_fdes_leave_the_truth_open() -> None:
    """Where FDEs overlap, a row has to agree with one of them."""
    outer = asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x20)
    inner = asm.Fde(cie_of(AMD64, asm.def_cfa_offset(24)), TEXT_VADDR + 8, 8)
    image = linked(AMD64, outer, inner)

    def section(inner_offset: int) -> RawSection:
        parts = ((0, 8, 8), (8, 8, inner_offset), (16, 16, 8))
        return RawSection(
            tuple(RawFunction(TEXT_VADDR + start, size, bytes((0, 3, offset))) for start, size, offset in parts)
        )

    assert said(image, section(24)) == []
    assert said(image, section(8)) == []
    assert said(image, section(32)) == [
        "wrong +0x8 CFA is rsp+24, the row has rsp+32",
        "wrong +0x8 CFA is rsp+8, the row has rsp+32",
    ]


def test_inexpressible_functions_may_hide_bytes_of_others() -> None:
    """Where the FDE in force cannot be expressed, nothing is missing, though another FDE has the address too."""
    unsayable = asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x30")), TEXT_VADDR + 8, 8)
    image = linked(AMD64, asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x20), unsayable)
    parts = (RawFunction(TEXT_VADDR, 8), RawFunction(TEXT_VADDR + 16, 16))
    result = check(image, RawSection(parts))
    assert (result.differences, result.left_out_count) == ((), 1)
    assert said(image, RawSection(parts[:1])) == ["missing +0x0 no SFrame FDE, though this version can express it"]


def test_the_first_and_the_last_addresses() -> None:
    """Code may end with the last address; a function that claims more ends there, too."""
    vaddr = (1 << 64) - 0x10
    image = load(linked_file(AMD64, (asm.Fde(cie_of(AMD64), vaddr, 0x10),), codes=(Code(vaddr, 0x10),)))
    function = RawFunction(-0x10)
    assert check(image, RawSection((function,))) == (1, 1, 0, (), True, (), (1, 0, 0, 0, 0))
    assert [d.message for d in check(image, RawSection((function._replace(rows=b"\0\3\x10"),))).differences] == [
        "CFA is rsp+8, the row has rsp+16"
    ]
    other = linked(AMD64, push_fp(AMD64))
    functions = (RawFunction(0, 1), PUSH, function._replace(size=0x20))
    assert [d for d in check(other, RawSection(functions)).differences if d.kind != "invariant"] == [
        Difference("extra", 0, "no CFI for 1 byte of a function"),
        Difference("extra", vaddr, "no CFI for 16 bytes of a function"),
    ]


#: rsp + 8 + (((rip & 15) >= 11) << 3): what linkers say of the stubs of a PLT.
PLT_CFA = asm.def_cfa_expression(bytes.fromhex("77 08 80 00 3f 1a 3b 2a 33 24 22"))


def test_a_cfa_that_depends_on_the_pc() -> None:
    """It is evaluated at each address."""
    image = linked(AMD64, asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x40, (asm.advance(0x10), PLT_CFA)))
    first, blocks = (
        RawFunction(TEXT_VADDR),
        RawFunction(TEXT_VADDR + 16, 0x30, bytes.fromhex("00 03 08 0b 03 10"), 2, 0x10),
    )
    for version in (2, 3):
        right = blocks._replace(repeat_size=16)
        assert said(image, RawSection((first, right), version)) == []
        assert check(image, RawSection((first, right), version)).point_count == 7
        early = right._replace(rows=bytes.fromhex("00 03 08 09 03 10"))
        assert said(image, RawSection((first, early), version)) == [
            f"wrong +{at:#x} CFA is rsp+8, the row has rsp+16" for at in (0x19, 0x29, 0x39)
        ]
    # Version 1's mask test: a row holds where the PC has all bits of its start, so not at 12 to 14.
    for section, delta in ((RawSection((first, blocks), 1), 12), (RawSection((RawFunction(TEXT_VADDR, 0x40),)), 11)):
        assert said(image, section) == [
            f"wrong +{block + delta:#x} CFA is rsp+16, the row has rsp+8" for block in (0x10, 0x20, 0x30)
        ]


def test_blocks_of_another_size_than_those_of_the_cfi() -> None:
    """Blocks of 24 bytes are compared with those of 16 at each address where either changes."""
    image = linked(AMD64, asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x70, (asm.advance(0x10), PLT_CFA)))
    block = RawFunction(TEXT_VADDR + 16, 0x60, bytes.fromhex("00 03 08 0b 03 10 10 03 08"), 3, 0x10, 0, 24)
    assert said(image, RawSection((RawFunction(TEXT_VADDR), block))) == [
        f"wrong +{start + at:#x} {text}"
        for start in (0x10, 0x40)
        for at, text in (
            (27, "CFA is rsp+16, the row has rsp+8"),
            (35, "CFA is rsp+8, the row has rsp+16"),
            (43, "CFA is rsp+16, the row has rsp+8"),
        )
    ]


OF_PLT = asm.Fde(cie_of(AMD64), PLT_VADDR, 0x30)


@pytest.mark.parametrize(
    ("fdes", "section_headers"), [((), True), ((), False), ((push_fp(AMD64), OF_PLT), True), ((push_fp(AMD64),), False)]
)
def test_stubs(fdes: tuple[asm.Fde, ...], *, section_headers: bool) -> None:
    """At their addresses, their instructions are the truth, whatever the CFI says; also where there is none."""
    codes = (Code(data=b"\xc3" * 0x1000), Code(PLT_VADDR, 0x30, ".plt", lazy_stubs(2)))
    # The CFI of a file without section headers is found by a header that this one lacks.
    found_cfi = find_cfi(load(linked_file(AMD64, fdes, codes=codes)), "code")
    image = load(linked_file(AMD64, fdes, codes=codes, section_headers=section_headers))
    entries = read_programs(image, *found_cfi).entries
    block, first = (
        RawFunction(PLT_VADDR + 0x10, 0x20, bytes.fromhex("00 03 08 0b 03 10"), 2, 0x10, 0, 16),
        RawFunction(PLT_VADDR, 0x10, bytes.fromhex("00 03 10 06 03 18"), 2),
    )

    def found(*functions: RawFunction) -> list[tuple[str, int]]:
        raw = RawSection((*[PUSH for _ in fdes[:1]], *functions))
        differences = verify_section(image, entries, read_section(raw.assemble(), raw.vaddr)).differences
        return [(d.message, d.vaddr - PLT_VADDR) for d in differences if d.kind != "invariant"]

    assert found(first, block) == []
    text = "the stub has CFA=rsp+16 RA=c-8, the row has CFA=rsp+24 RA=c-8"
    wrong = block._replace(rows=bytes.fromhex("00 03 08 0b 03 18"))
    assert found(first, wrong) == [(text, 0x1B), (text, 0x2B)]
    late = block._replace(rows=bytes.fromhex("04 03 08 0b 03 10"))
    text = "the stub has CFA=rsp+8 RA=c-8, the row has nothing"
    assert found(first, late) == [(text, 0x10), (text, 0x20)]
    if section_headers:
        missing = "no SFrame FDE for 16 bytes of PLT stubs"
        assert found(first, block._replace(size=0x10)) == [(missing, 0x20)]
        raw = RawSection((*[PUSH for _ in fdes[:1]], first, block))
        result = verify_section(image, entries, read_section(raw.assemble(), raw.vaddr))
        # Stubs are no functions.
        assert (result.judged.plt_code, result.judged.cfi, result.function_count) == (6, 3 * bool(fdes), bool(fdes))


#: `stp x5, x30, [sp, #-16]!` and `stp x30, x17, [sp, #-16]!`, which no linker writes, and `stp x2, x3, [sp, #-16]!` of
#: the stub for TLS descriptors.
X5_SAVED, RA_FIRST, TWO_SAVED = 0xA9BF7BE5, 0xA9BF47FE, 0xA9BF0FE2
LOAD_SLOT = (0x90000010, 0xF9400211, 0x91000210, 0xD61F0220)


@pytest.mark.parametrize(
    ("arch", "code", "left_out", "judged"),
    [
        # The second of three stubs is a trap. After it, nobody knows where an instruction begins.
        (AMD64, lazy_stubs(3)[:32] + b"\x0f\x0b" + lazy_stubs(3)[34:], [(0x20, 16)], (4, 2)),
        (AARCH64_LE, struct.pack("<12I", X5_SAVED, *LOAD_SLOT, *[0xD503201F] * 3, *LOAD_SLOT), [], (3, 0)),
        (AARCH64_LE, struct.pack("<12I", TWO_SAVED, *LOAD_SLOT, *[0xD503201F] * 3, *LOAD_SLOT), [], (3, 0)),
        (AARCH64_LE, struct.pack("<12I", RA_FIRST, *LOAD_SLOT, *[0xD503201F] * 3, *LOAD_SLOT), [], (1, 2)),
    ],
    ids=["trap", "another-pair", "pair-without-ra", "unknown-pair"],
)
def test_stubs_of_which_one_is_not_known(
    arch: Arch, code: bytes, left_out: list[tuple[int, int]], judged: tuple[int, int]
) -> None:
    """That costs this one, or nobody confirms it: all others are converted and compared."""
    codes = (Code(data=b"\xc3" * 0x1000), Code(PLT_VADDR, len(code), ".plt", code))
    conversion = convert(load(linked_file(arch, (push_fp(arch),), codes=codes)))
    found = verify(conversion)
    assert found.differences == ()
    assert [(skip.start_vaddr - PLT_VADDR, skip.size) for skip in conversion.stubs_left_out] == left_out
    assert (found.judged.plt_code, found.judged.none) == judged
    functions = conversion.section.starts
    outer = conversion.section._replace(bodies=conversion.section.bodies[::-1])
    assert len(functions) > 1
    assert {d.kind for d in verify(conversion.image, outer).differences} == {"wrong"}


def test_objects_are_compared_where_the_image_puts_them() -> None:
    data = object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".text.other": (push_fp(AMD64, 0x10),)})
    image = load(data, "in.o")
    assert verify(convert(image)) == (2, 6, 0, (), True, (), (6, 0, 0, 0, 0))
    vaddrs = {s.name: s.vaddr for s in image.sections}
    functions = (PUSH._replace(start=vaddrs[".text"]), PUSH._replace(start=vaddrs[".text.other"] + 0x10))
    for order in (functions[::-1], (*functions, functions[0])):
        assert check(image, RawSection(order, flags=4, vaddr=0)).differences == ()


#: What is in the address of the section.
HEADER, UNUSUAL = "invariant +0x10000", "unusual +0x10000"
# fmt: off
INVARIANTS: dict[str, tuple[RawSection, *tuple[str, ...]]] = {
    "flags": (GOOD._replace(flags=0x0D), f"{HEADER} flags 0xd are not of this version"),
    "not sorted": (GOOD._replace(flags=4), f"{UNUSUAL} not sorted, in a linked file"),
    "frame pointer flag of version 3": (GOOD._replace(flags=7), f"{HEADER} flags 0x7 are not of this version"),
    "PC-relative flag of version 1": (GOOD._replace(version=1, flags=5),
                                      f"{HEADER} flags 0x5 are not of this version"),
    "version 3 without PC-relative starts": (GOOD._replace(flags=1),
                                             f"{UNUSUAL} version 3 without SFRAME_F_FDE_FUNC_START_PCREL"),
    "byte order": (GOOD._replace(order=">"), f"{HEADER} not in the byte order of AMD64"),
    "auxiliary header": (GOOD._replace(auxiliary=b"\0" * 8), f"{UNUSUAL} an auxiliary header of 8 bytes"),
    "place of functions": (GOOD._replace(fde_offset=4), f"{UNUSUAL} sfh_fdeoff is 4, not 0",
                           f"{UNUSUAL} sfh_freoff is 36, the table's size 32"),
    "place of rows": (GOOD._replace(fre_offset=36), f"{UNUSUAL} sfh_freoff is 36, the table's size 32"),
    "count of rows": (GOOD._replace(fre_count=5), f"{HEADER} sfh_num_fres is 5, the functions have 4 rows"),
    "bytes after the rows": (GOOD._replace(tail=b"\0"), f"{HEADER} sfh_fre_len does not reach the section's end"),
    "fixed FP offset": (with_rows("00 03 08 04 03 10 08 02 10")._replace(fixed_fp=-16),
                        f"{UNUSUAL} fixed FP offset -16",
                        "wrong +0x0 FP is unspecified, the row has c-16",
                        "wrong +0x40 FP is unspecified, the row has c-16"),
    "starts that do not ascend": (RawSection((LEAF, PUSH)), "invariant +0x0 starts do not ascend"),
    "two functions at one start": (RawSection((PUSH, LEAF, LEAF)), "invariant +0x40 starts do not ascend"),
    "an overlap": (RawSection((PUSH, RawFunction(TEXT_VADDR + 0x1C, 4, b"\0\4\x10\xf0"), LEAF)),
                   "invariant +0x1c overlaps the function before it"),
    "a function outside the code": (RawSection((RawFunction(0x1000, 8), PUSH, LEAF)),
                                    "extra -0x1f000 no CFI for 8 bytes of a function",
                                    "invariant -0x1f000 starts outside the executable sections and segments"),
    "a function without rows": (RawSection((PUSH, LEAF._replace(rows=b"", row_count=0))),
                                "unusual +0x40 no rows",
                                "wrong +0x40 the row is an outermost frame, but RA is defined"),
    "a function without size": (RawSection((PUSH, LEAF, at(0x60, 0))), "unusual +0x60 no size",
                                "unusual +0x60 the last row starts at the end, 0"),
    "row starts that do not ascend": (with_rows("00 03 08  00 03 08  04 05 10 f0  08 04 10 f0", 4),
                                      "invariant +0x0 row starts do not ascend"),
    "a row at the end": (with_rows(ROWS + "20 03 08", 4), "unusual +0x0 the last row starts at the end, 32"),
    "a row past the end": (with_rows(ROWS + "21 03 08", 4),
                           "invariant +0x0 the last row starts at 33, past the end at 32"),
    "a block size of a PCINC function": (RawSection((PUSH, LEAF._replace(repeat_size=8))),
                                         "unusual +0x40 block size 8 of a PCINC function"),
    "no block size of a PCMASK function": (RawSection((PUSH, LEAF._replace(info=0x10))),
                                           "invariant +0x40 block size 0 of a PCMASK function",
                                           "wrong +0x40 no row is in force"),
    "a row past the block's end": (
        RawSection((PUSH, LEAF._replace(rows=b"\0\3\x08\x09\3\x08", row_count=2, info=0x10, repeat_size=8))),
        "invariant +0x40 the last row starts at 9, past the end at 8"),
}
# fmt: on


@pytest.mark.parametrize("name", INVARIANTS)
def test_invariants(image: ElfImage, name: str) -> None:
    section, *found = INVARIANTS[name]
    lines = [line.replace("+-", "-") for line in said(image, section)]
    assert sorted(lines) == sorted(found)


def test_the_fixed_ra_offset() -> None:
    found = check(truth(AARCH64_LE), one_row("00 03 00", abi=2, fixed_ra=-8)).differences
    assert Difference("invariant", 0x30000, "fixed RA offset -8") in found
    assert Difference("wrong", TEXT_VADDR, "RA is unspecified, the row has c-8") in found


def test_the_abi() -> None:
    outermost = truth(AMD64, asm.undefined(16))
    assert said(outermost, one_row("00 00", **AARCH64)) == ["invariant +0x10000 for AArch64, the file is for AMD64"]
