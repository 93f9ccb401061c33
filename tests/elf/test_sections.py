# SPDX-License-Identifier: Apache-2.0
"""The layout of an object's sections, and the ranges of addresses that hold instructions."""

from itertools import pairwise

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import SectionOffset
from cfi2sframe.elf.sections import CodeRange, _without_overlap
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.images import ALLOC_CODE, DATA_VADDR, TEXT_VADDR, an_object, linked


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 4), (4, 8)], [(0, 4, 0), (4, 8, 1)]),
        ([(0, 9), (2, 4)], [(0, 2, 0), (2, 4, 1), (4, 9, 0)]),
        ([(0, 9), (2, 4), (6, 7)], [(0, 2, 0), (2, 4, 1), (4, 6, 0), (6, 7, 2), (7, 9, 0)]),
        ([(0, 4), (2, 9)], [(0, 2, 0), (2, 9, 1)]),
        ([(0, 9), (2, 7), (3, 4)], [(0, 2, 0), (2, 3, 1), (3, 4, 2), (4, 7, 1), (7, 9, 0)]),
        ([(0, 4), (0, 4)], [(0, 4, 1)]),
        ([(0, 4), (2, 4), (5, 6)], [(0, 2, 0), (2, 4, 1), (5, 6, 2)]),
        ([(0, 4), (1, 9), (5, 6)], [(0, 1, 0), (1, 5, 1), (5, 6, 2), (6, 9, 1)]),
    ],
)
def test_overlapping_code_is_in_one_range(spans: list[tuple[int, int]], expected: list[tuple[int, int, int]]) -> None:
    ranges = [CodeRange("", index, start, end) for index, (start, end) in enumerate(spans)]
    found = [(r.start_vaddr, r.end_vaddr, r.section_index) for r in _without_overlap(ranges)]
    assert found == expected


def test_an_empty_section_with_instructions_does_not_hide_those_of_a_segment() -> None:
    code = asm.Section(".other", b"\x90" * 16, addr=0x1000, flags=c.SHF_ALLOC)
    empty = asm.Section(".text", b"", addr=0x1000, flags=ALLOC_CODE)
    segment = asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".other",))
    image = load(asm.elf_file(62, (empty, code), file_type=c.ET_DYN, segments=(segment,)))
    assert image.code_ranges == (CodeRange("segment 0", 0, 0x1000, 0x1010),)


def test_an_object_gets_a_layout_of_its_own() -> None:
    image = load(an_object())
    assert image.is_relocatable
    allocated = [section for section in image.sections if section.flags & c.SHF_ALLOC]
    assert [section.name for section in allocated] == [".text", ".text.b", ".bss", ".rodata", ".empty"]
    assert all(section.vaddr % section.alignment == 0 for section in allocated)
    # With a gap: no end is a start; and not at 0, where discarded functions are.
    assert all(left.end_vaddr < right.vaddr for left, right in pairwise(allocated))
    assert allocated[0].vaddr > 0
    assert image.sections[2].vaddr == 0


@pytest.mark.parametrize("flags", [0, c.SHF_ALLOC])
def test_an_sframe_section_moves_nothing(flags: int) -> None:
    """Addresses in an object are the same with and without one, whether it is loaded or not, and however large."""
    text, data = asm.Section(".text", b"\xc3" * 8, flags=ALLOC_CODE), asm.Section(".data", b"D", flags=c.SHF_ALLOC)
    sframe = asm.Section(".sframe", bytes(0x1000), flags=flags, align=8)
    plain, holder = (load(asm.elf_file(62, each)) for each in ((text, data), (text, sframe, data)))
    for name in (".text", ".data"):
        (old,), (new,) = plain.sections_named(name), holder.sections_named(name)
        assert old.vaddr == new.vaddr > 0
    (section,) = holder.sections_named(".sframe")
    assert (section.vaddr > plain.sections[2].vaddr) == bool(flags)


def test_place_turns_an_address_of_an_object_back() -> None:
    image = load(an_object())
    for section in image.sections:
        if not section.flags & c.SHF_ALLOC:
            continue
        for offset in {0, 1, section.size // 2, section.size - 1} if section.size else set[int]():
            assert image.place(section.vaddr + offset) == SectionOffset(section.index, section.name, offset)
        assert image.place(section.end_vaddr) == SectionOffset(0, "", section.end_vaddr)
    assert image.place(0) == SectionOffset(0, "", 0)


def test_code_ranges() -> None:
    image = load(linked())
    text, fini = image.code_ranges
    assert text == CodeRange(".text", 1, TEXT_VADDR, TEXT_VADDR + 0x80)
    assert fini == CodeRange(".fini", 2, TEXT_VADDR + 0x100, TEXT_VADDR + 0x110)
    # Between the two, addresses are in no section, but in the segment.
    for delta, code, may_execute in (
        *((-1, None, False), (0, text, True), (0x7F, text, True), (0x80, None, True), (0xFF, None, True)),
        *((0x100, fini, True), (0x10F, fini, True), (0x110, None, False), (DATA_VADDR - TEXT_VADDR, None, False)),
    ):
        assert image.code_range_of(TEXT_VADDR + delta) == code
        assert image.may_execute(TEXT_VADDR + delta) is may_execute


@pytest.mark.parametrize(
    ("start", "end", "holds"),
    [
        (0, 0x80, True),
        (0x10, 0x20, True),
        # Past its section, but inside the segment: the borders of sections may be a linker script's.
        (0x70, 0x90, True),
        (0x100, 0x110, True),
        (0x100, 0x111, False),
        # Starts in no executable section.
        (0x80, 0x90, False),
        (-1, 0x10, False),
        (DATA_VADDR - TEXT_VADDR, DATA_VADDR - TEXT_VADDR + 4, False),
    ],
)
def test_where_code_may_be_in_a_linked_file(start: int, end: int, holds: bool) -> None:  # noqa: FBT001
    assert (load(linked()).not_code([TEXT_VADDR + start], [TEXT_VADDR + end]) == []) is holds


def test_many_ranges_are_judged_as_one_is() -> None:
    image = load(linked())
    ranges = [(start, start + size) for start in range(TEXT_VADDR - 4, TEXT_VADDR + 0x120, 4) for size in (0, 4, 0x90)]
    starts, ends = zip(*ranges, strict=True)
    outside = [number for number, (start, end) in enumerate(ranges) if image.not_code([start], [end])]
    assert 0 < len(outside) < len(ranges)
    assert image.not_code(starts, ends) == outside
