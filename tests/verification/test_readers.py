# SPDX-License-Identifier: Apache-2.0
"""What each reader would do with a section: each rule is broken once."""

from itertools import pairwise
from typing import Any, Final

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode, decode_existing, judge
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import RequestError
from cfi2sframe.verification import READERS
from cfi2sframe.verification.readers import Verdict
from tests.support.elf import elf_asm as asm
from tests.support.sframe.raw_sframe import RawFunction, RawSection

EM_X86_64, EM_S390, EM_AARCH64 = 62, 22, 183
ET_DYN, PT_LOAD, PT_PHDR, PT_GNU_SFRAME = 3, 1, 6, 0x6474E554
CODE: Final = 6
MACHINES: Final = {2: EM_AARCH64, 3: EM_X86_64, 4: EM_S390}
SECTION = RawSection()
#: CFA = *(rbp - 8), FP = *(rbp + 0).
FLEXIBLE = b"\x00\x0a\x33\xf8\x00\x33\x00"


def linked_image(
    *,
    abi: int = 3,
    code: bytes = bytes(0x1000),
    cuts: tuple[int, ...] = (),
    section: bytes = b"",
    more: tuple[asm.Segment, ...] = (),
    section_segment: tuple[asm.Segment, ...] = (),
) -> ElfImage:
    """Return a library with code at 0x20000, in one executable segment, or in several, cut at these offsets."""
    edges = [0, *cuts, len(code)]
    parts = [
        asm.Section(f".text{start:x}", code[start:end], 1, CODE, 0x20000 + start) for start, end in pairwise(edges)
    ]
    sections = (*parts, *([asm.Section(".sframe", section, 0x6FFFFFF4, 2, 0x30000, align=8)] if section else []))
    return load(
        asm.elf_file(
            MACHINES[abi],
            sections,
            file_type=ET_DYN,
            little_endian=abi != 4,
            segments=(*more, *(asm.Segment(PT_LOAD, 5, (part.name,), align=1) for part in parts), *section_segment),
        )
    )


def verdicts(reader: str, section: RawSection, image: ElfImage | None = None) -> tuple[Verdict, ...]:
    return judge(image or linked_image(abi=section.abi), decode(section.assemble(), section.vaddr), reader)


def function(**fields: Any) -> RawSection:  # noqa: ANN401 - whatever fields a function has
    version = fields.pop("version", 3)
    return RawSection((RawFunction()._replace(**fields),), version)


def test_readers_that_are_written_for_have_demands() -> None:
    for name, reader in READERS.items():
        section = function(version=reader.version, rows=b"\x00\x02\x08")
        assert [verdict.reader for verdict in verdicts(name, section)][:1] == [name]
    with pytest.raises(RequestError, match=r"reader 'perf' is none of ld-2\.40"):
        verdicts("perf", SECTION)


def test_readers_of_linked_files_and_of_objects() -> None:
    text = asm.Section(".text", bytes(0x40), 1, CODE)
    progbits = asm.Section(".sframe", SECTION.assemble(), 1, 2, align=8)
    image = load(asm.elf_file(EM_X86_64, (text, progbits), file_type=1))
    for name, version, rule in (("kernel", 3, "linked file"), ("glibc", 2, "linked file"), ("ld-2.41", 2, "object")):
        (verdict,) = verdicts(name, SECTION._replace(version=version), None if rule == "object" else image)
        assert [broken.rule for broken in verdict.broken] == [rule]
    for name, rule in (("ld", "section type"), ("kernel", "linked file")):
        (verdict,) = judge(image, decode_existing(image), name, is_in_file=True)
        assert [broken.rule for broken in verdict.broken] == [rule]


TWO: Final = RawSection((RawFunction(), RawFunction(0x20010)), version=2)
RIGHT: Final = {
    "kernel": (
        SECTION,
        function(rows=FLEXIBLE, info2=1),
        function(rows=b"\x00\x00"),
        function(rows=b"\x00\x03\x08\x0b\x03\x10", row_count=2, info=0x10, repeat_size=16, size=0x40),
        SECTION._replace(fre_count=7),
        SECTION._replace(fde_offset=8),
    ),
    "glibc": (
        TWO,
        TWO._replace(flags=1),
        TWO._replace(flags=3),
        function(version=2, rows=b"\x00\x03\x08\x0b\x03\x10", row_count=2, info=0x10, repeat_size=16, size=0x40),
    ),
}


@pytest.mark.parametrize(("reader", "section"), [(reader, section) for reader in RIGHT for section in RIGHT[reader]])
def test_right_sections_are_read(reader: str, section: RawSection) -> None:
    (verdict,) = verdicts(reader, section)
    assert verdict.reads_it, verdict


@pytest.mark.parametrize(
    ("section", "rule", "message"),
    [
        (SECTION._replace(version=2), "version", "version 2; it reads version 3"),
        (SECTION._replace(flags=4), "flags", "flags 0x4"),
        (SECTION._replace(flags=7), "flags", "flags 0x7"),
        (SECTION._replace(abi=2, fixed_ra=0), "ABI", "for AArch64, the file is for AMD64"),
        (SECTION._replace(auxiliary=b"12345678"), "auxiliary header", "of 8 bytes"),
        (SECTION._replace(functions=()), "functions and rows", "no functions"),
        (SECTION._replace(fre_count=0), "functions and rows", "no rows"),
        (function(start=0x1FFFF), "executable segments", "a function is in no executable segment"),
        (function(start=0x20FF8), "executable segments", "or reaches past its end"),
        (RawSection((RawFunction(), RawFunction(size=4))), "order of functions", "starts do not ascend"),
        (function(row_count=0)._replace(fre_count=1), "number of rows", "no rows"),
        (function(rows=b"\x00\x03\x08\x00\x03\x10", row_count=2), "order of rows", "row starts do not ascend"),
        (function(rows=b"\x00\x03\x08\x10\x03\x10", row_count=2), "rows outside", "the last row starts at the end, 16"),
        (
            function(rows=b"\x00\x03\x08\x0b\x03\x10", row_count=2, info=0x10, repeat_size=8, size=64),
            "rows outside",
            "the last row starts at 11, past the end at 8",
        ),
        (function(info=0x10), "block size", "block size 0 of a PCMASK function"),
        (function(rows=b"\x00\x24\x03\x01\xf8\xff", info2=1), "register numbers", "register 32 is taken for 0"),
    ],
)
def test_each_rule_of_linux(section: RawSection, rule: str, message: str) -> None:
    image = linked_image()
    (verdict,) = verdicts("kernel", section, image)
    found = {broken.rule: broken.message for broken in verdict.broken}
    assert message in found.get(rule, ""), verdict


@pytest.mark.parametrize(
    ("section", "rule", "consequence"),
    [
        (SECTION, "version", "refuses it"),
        (TWO._replace(flags=0xD), "flags", "refuses it"),
        (TWO._replace(fde_offset=8), "layout", "reads it wrongly"),
        (TWO._replace(fre_offset=48), "layout", "reads it wrongly"),
        (TWO._replace(flags=4), "SFRAME_F_FDE_SORTED", "leaves traces to DWARF"),
        (TWO._replace(functions=TWO.functions[::-1]), "order of functions", "reads it wrongly"),
        (TWO._replace(functions=(RawFunction(), RawFunction(0x20008))), "overlap", "reads it wrongly"),
        (function(version=2, info=0x10), "block size", "crashes"),
        (function(version=2, rows=b"\x00\x00"), "rows without data words", "leaves traces to DWARF"),
        (function(version=2, rows=b"\x00\x03\x08\x00\x03\x10", row_count=2), "order of rows", "reads it wrongly"),
        (function(version=2, rows=b"\x00\x03\x08\x10\x03\x10", row_count=2), "rows outside", "reads it wrongly"),
        (RawSection((RawFunction(rows=b"\x00\x03\x08"),), 2, order=">", abi=4, fixed_ra=0), "ABI", "refuses it"),
    ],
)
def test_each_rule_of_glibc(section: RawSection, rule: str, consequence: str) -> None:
    (verdict,) = verdicts("glibc", section)
    found = {broken.rule: broken.consequence for broken in verdict.broken}
    assert found.get(rule) == consequence, verdict


ARM64: Final = RawSection((RawFunction(rows=b"\x00\x05\x10\xf0"),), abi=2, fixed_ra=0)


@pytest.mark.parametrize(
    ("section", "rules"),
    [
        (ARM64, []),
        (ARM64._replace(flags=4), []),
        (ARM64._replace(functions=(RawFunction(rows=b"\x00\x02\x10"),)), []),
        (ARM64._replace(version=2), ["version"]),
        (ARM64._replace(flags=1), ["flags"]),
        (SECTION, ["ABI"]),
        (ARM64._replace(auxiliary=b"12345678"), ["auxiliary header"]),
        (ARM64._replace(functions=(RawFunction(rows=FLEXIBLE, info2=1),)), ["flexible rows"]),
        (ARM64._replace(functions=(RawFunction(rows=b"\x00\x00"),)), ["rows without data words"]),
        (ARM64._replace(functions=(RawFunction(0x20FF8, rows=b"\x00\x03\x10"),)), ["text"]),
        (ARM64._replace(functions=(RawFunction(0x40000, rows=b"\x00\x03\x10"),)), ["text"]),
    ],
)
def test_each_rule_of_linux_on_arm64(section: RawSection, rules: list[str]) -> None:
    """Sections of programs of AMD64 are of another ABI than the file, here."""
    (verdict,) = verdicts("kernel-arm64", section, linked_image(abi=2))
    assert [broken.rule for broken in verdict.broken] == rules
    assert verdict.reads_it is (not rules)


def test_linux_on_arm64_reads_no_other_abi() -> None:
    (verdict,) = verdicts("kernel-arm64", SECTION, linked_image())
    assert [(broken.rule, broken.message) for broken in verdict.broken] == [("ABI", "it is not written for AMD64")]


def test_linux_on_arm64_wants_functions_of_modules_in_their_text() -> None:
    """What is freed after a module is loaded is no part of its text."""
    code = asm.Section(".init.text", bytes(0x40), 1, CODE)
    image = load(asm.elf_file(EM_AARCH64, (asm.Section(".text", bytes(0x40), 1, CODE), code), file_type=1))
    starts = [section.vaddr for section in image.sections if section.name in (".text", ".init.text")]
    for start, rules in zip(starts, ([], ["text"]), strict=True):
        function = RawFunction(start, 0x10, b"\x00\x03\x10")
        (verdict,) = verdicts("kernel-arm64", ARM64._replace(functions=(function,)), image)
        assert [broken.rule for broken in verdict.broken] == rules


def test_libsframe_reads_s390x_since_it_has_been_defined() -> None:
    """The release before takes CFAs for others, and does not complain; of all else, `test_readers_oracle` asks it."""
    section = RawSection((RawFunction(rows=b"\x00\x03\x08"),), 2, flags=1, order=">", abi=4, fixed_ra=0)
    assert [verdict.releases for verdict in verdicts("libsframe", section) if verdict.reads_it] == ["2.47"]


def test_several_segments() -> None:
    section = RawSection((RawFunction(), RawFunction(0x20010)))
    (verdict,) = verdicts("kernel", section, linked_image(cuts=(0x10,)))
    assert [broken.rule for broken in verdict.broken] == ["executable segments"]
    assert "functions are in 2 of 2 executable segments" in verdict.broken[0].message
    (verdict,) = verdicts("kernel", section, linked_image(cuts=(0x800,)))
    assert verdict.reads_it
    (verdict,) = verdicts("glibc", section._replace(version=2), linked_image(cuts=(0x10,)))
    assert verdict.reads_it


def test_sections_that_are_not_found() -> None:
    data = SECTION.assemble()
    load_segment = asm.Segment(PT_LOAD, 4, (".sframe",), align=1)
    entry = asm.Segment(PT_GNU_SFRAME, 4, (".sframe",))
    for segments, message in (
        ((load_segment, entry), ""),
        ((load_segment,), "the file has no PT_GNU_SFRAME segment"),
        ((entry,), "PT_GNU_SFRAME is in no PT_LOAD segment"),
        ((load_segment, entry._replace(sections=(".text0",))), "does not lead to the section"),
    ):
        image = linked_image(section=data, section_segment=segments)
        decoded = decode(data, 0x30000)
        (verdict,) = judge(image, decoded, "kernel", is_in_file=True)
        assert [message in broken.message for broken in verdict.broken] == ([True] if message else []), verdict
        (verdict,) = judge(image, decoded, "kernel")
        assert verdict.reads_it
