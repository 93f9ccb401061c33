# SPDX-License-Identifier: Apache-2.0
"""ELF images: headers that cannot be used, sections, the layout of objects, addresses, symbols."""

import re
import struct
from itertools import pairwise

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import StringTable
from cfi2sframe.elf.image import ElfImage, SectionOffset
from cfi2sframe.elf.sections import CodeRange, _without_overlap
from cfi2sframe.errors import ElfError
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.elf_asm import header_of_section, patched

TEXT_VADDR, DATA_VADDR = 0x401000, 0x403000
E_PHOFF, E_SHOFF, E_PHENTSIZE, E_PHNUM, E_SHENTSIZE, E_SHNUM, E_SHSTRNDX = 32, 40, 54, 56, 58, 60, 62
SH_SIZE, SH_LINK = 32, 40
ALLOC_CODE = c.SHF_ALLOC | c.SHF_EXECINSTR


def linked() -> bytes:
    """An executable: code in a first segment, data and .bss in a second."""
    sections = (
        asm.Section(".text", b"\xc3" * 0x80, flags=ALLOC_CODE, addr=TEXT_VADDR, align=16),
        asm.Section(".fini", b"\xc3" * 0x10, flags=ALLOC_CODE, addr=TEXT_VADDR + 0x100, align=4),
        asm.Section(".data", b"DATA" * 4, flags=c.SHF_ALLOC | c.SHF_WRITE, addr=DATA_VADDR, align=8),
        asm.Section(".bss", b"", c.SHT_NOBITS, c.SHF_ALLOC | c.SHF_WRITE, DATA_VADDR + 0x10, align=8, nobits_size=0x40),
        asm.Section(".comment", b"nothing"),
    )
    return asm.elf_file(
        c.EM_X86_64,
        sections,
        file_type=c.ET_EXEC,
        segments=(
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text", ".fini")),
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".data", ".bss")),
        ),
    )


OBJECT_SECTIONS = (
    asm.Section(".text", b"\xc3" * 0x21, flags=ALLOC_CODE, align=16),
    asm.Section(".comment", b"compiler"),
    asm.Section(".text.b", b"\xc3" * 0x10, flags=ALLOC_CODE, align=64),
    asm.Section(".bss", type=c.SHT_NOBITS, flags=c.SHF_ALLOC | c.SHF_WRITE, align=32, nobits_size=0x1000),
    asm.Section(".rodata", b"r" * 5, flags=c.SHF_ALLOC, align=1),
    asm.Section(".empty", b"", flags=ALLOC_CODE, align=1),
)


def an_object(symbols: tuple[asm.Symbol, ...] = ()) -> bytes:
    return asm.elf_file(c.EM_X86_64, OBJECT_SECTIONS, symbols=symbols)


# --- The file header ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "not an ELF file") for data in (b"", b"\x7f", b"\x7fEL", b"#!/bin/sh\n", b"!<arch>\n", bytes(64))),
        *((an_object()[:n], f"truncated: the ELF header needs 64 bytes, the file has {n}") for n in (4, 5, 6, 32, 63)),
        (patched(an_object(), 4, "B", 1), "not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only"),
        (patched(an_object(), 5, "B", 3), "unknown byte order 3 in the ELF header"),
        (patched(an_object(), 16, "H", 4), "ELF type 4 is neither an object, an executable nor a library"),
    ],
)
def test_files_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ElfError) as caught:
        load(data)
    assert str(caught.value) == f"<bytes>: {message}"


@pytest.mark.parametrize(
    ("machine", "little_endian", "name"),
    [
        (243, True, "EM_RISCV (little-endian)"),
        (21, False, "EM_PPC64 (big-endian)"),
        (c.EM_X86_64, False, "EM_X86_64 (big-endian)"),
        (c.EM_S390, True, "EM_S390 (little-endian)"),
        (0xFFEE, True, "ELF machine 65518 (little-endian)"),
    ],
)
def test_other_machines(machine: int, little_endian: bool, name: str) -> None:  # noqa: FBT001
    with pytest.raises(ElfError, match=f"{re.escape(f'SFrame is not defined for {name}')}$"):
        load(asm.elf_file(machine, OBJECT_SECTIONS, little_endian=little_endian))


# --- Section and program headers ----------------------------------------------------------------------------


def test_sections_of_a_linked_file() -> None:
    image = load(linked())
    assert not image.is_relocatable
    text, data, bss, comment = (image.sections[index] for index in (1, 3, 4, 5))
    assert (text.index, text.name, text.vaddr, text.size, text.end_vaddr) == (1, ".text", 0x401000, 0x80, 0x401080)
    assert (data.alignment, data.flags, data.type) == (8, c.SHF_ALLOC | c.SHF_WRITE, c.SHT_PROGBITS)
    assert image.section_bytes(data) == b"DATA" * 4
    assert (bss.size, image.section_bytes(bss)) == (0x40, b"")
    assert (comment.vaddr, comment.is_code) == (0, False)
    assert (text.is_code, data.is_code) == (True, False)


@pytest.mark.parametrize(
    ("offset", "code", "value", "message"),
    [
        (E_SHENTSIZE, "H", 40, "section headers of 40 bytes, not 64"),
        (E_SHOFF, "Q", 1 << 20, "section headers at 0x100000 leave the file"),
        (E_SHOFF, "Q", (1 << 64) - 1, "leave the file"),
        (E_SHNUM, "H", 0xFE00, "65024 section headers"),
        (E_PHENTSIZE, "H", 32, "program headers of 32 bytes, not 56"),
        (E_PHOFF, "Q", 1 << 20, "2 program headers at 0x100000 leave the file"),
        (E_PHNUM, "H", 0xFFFE, "65534 program headers"),
    ],
)
def test_tables_that_leave_the_file(offset: int, code: str, value: int, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        load(patched(linked(), offset, code, value))


def test_section_header_count_and_names_in_the_null_section() -> None:
    """gABI, "ELF Header": e_shnum 0 and e_shstrndx SHN_XINDEX point to fields of the null section."""
    data = linked()
    count, names = struct.unpack_from("<HH", data, E_SHNUM)
    null = header_of_section(data, 0)
    for offset, code, value in ((E_SHNUM, "H", 0), (E_SHSTRNDX, "H", 0xFFFF)):
        data = patched(data, offset, code, value)
    data = patched(patched(data, null + SH_SIZE, "Q", count), null + SH_LINK, "I", names)
    assert [s.name for s in load(data).sections] == [s.name for s in load(linked()).sections]
    with pytest.raises(ElfError, match=f"{1 << 40} section headers"):
        load(patched(data, null + SH_SIZE, "Q", 1 << 40))


@pytest.mark.parametrize(
    ("offset", "name"),
    [(0, "abc"), (1, "bc"), (3, ""), (4, "d\\xff"), (7, "tail"), (11, ""), (1 << 31, "")],
)
def test_strings(offset: int, name: str) -> None:
    """The last may have no end, bytes that are not UTF-8 are escaped, and outside of the table names are empty."""
    assert StringTable(b"abc\0d\xff\0tail").at(offset) == name


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 4), (4, 8)], [(0, 4, 0), (4, 8, 1)]),
        ([(0, 9), (2, 4)], [(0, 2, 0), (2, 4, 1), (4, 9, 0)]),
        ([(0, 9), (2, 4), (6, 7)], [(0, 2, 0), (2, 4, 1), (4, 6, 0), (6, 7, 2), (7, 9, 0)]),
        ([(0, 4), (2, 9)], [(0, 2, 0), (2, 9, 1)]),
        ([(0, 9), (2, 7), (3, 4)], [(0, 2, 0), (2, 3, 1), (3, 4, 2), (4, 7, 1), (7, 9, 0)]),
        ([(0, 4), (0, 4)], [(0, 4, 1)]),
        ([(0, 4), (1, 9), (5, 6)], [(0, 1, 0), (1, 5, 1), (5, 6, 2), (6, 9, 1)]),
    ],
)
def test_overlapping_code_is_in_one_range(spans: list[tuple[int, int]], expected: list[tuple[int, int, int]]) -> None:
    ranges = [CodeRange("", index, start, end) for index, (start, end) in enumerate(spans)]
    found = [(r.start_vaddr, r.end_vaddr, r.section_index) for r in _without_overlap(ranges)]
    assert found == expected


# --- Objects ------------------------------------------------------------------------------------------------


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


# --- Code ---------------------------------------------------------------------------------------------------


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


# --- Symbols ------------------------------------------------------------------------------------------------

FUNC, NOTYPE, SECTION, IFUNC, OBJECT = c.STT_FUNC, c.STT_NOTYPE, c.STT_SECTION, c.STT_GNU_IFUNC, 1


def symbols_of(image: ElfImage) -> dict[str, tuple[int | None, int, int, int]]:
    table = next(section for section in image.sections if section.type == c.SHT_SYMTAB)
    return {s.name: (s.vaddr, s.size, s.type, s.section_index) for s in image.symbols(table)}


def test_symbols_of_an_object_are_in_its_layout() -> None:
    image = load(
        an_object(
            (
                asm.Symbol("start", 0, 4, FUNC),
                asm.Symbol("global", 5, 6, 0x10 | FUNC, ".text.b"),
                asm.Symbol("word", 0x80, 8, OBJECT, ".bss"),
                asm.Symbol("note", 3, 0, NOTYPE, ".comment"),
                asm.Symbol("missing", 7, 0, 0x10, ""),
                asm.Symbol("number", 0x1234, 0, NOTYPE, "*ABS*"),
                asm.Symbol("tentative", 8, 16, 0x10 | OBJECT, "*COM*"),
            )
        )
    )
    text, comment, text_b, bss = image.sections[1:5]
    assert symbols_of(image) == {
        "": (None, 0, 0, 0),
        "start": (text.vaddr, 4, FUNC, 1),
        "global": (text_b.vaddr + 5, 6, FUNC, 3),
        "word": (bss.vaddr + 0x80, 8, OBJECT, 4),
        # A section that is not loaded has offsets only; .debug_frame points into itself by them.
        "note": (3, 0, NOTYPE, comment.index),
        "missing": (None, 0, NOTYPE, 0),
        "number": (0x1234, 0, NOTYPE, c.SHN_ABS),
        "tentative": (None, 16, OBJECT, c.SHN_COMMON),
    }


@pytest.mark.parametrize(
    ("symbols", "name"),
    [
        ((asm.Symbol("label", 0, 0, NOTYPE), asm.Symbol("function", 0, 4, FUNC)), "function"),
        ((asm.Symbol("function", 0, 4, FUNC), asm.Symbol("label", 0, 0, NOTYPE)), "function"),
        ((asm.Symbol("label", 0, 0, NOTYPE), asm.Symbol("chooser", 0, 4, IFUNC)), "chooser"),
        ((asm.Symbol("first", 0, 4, FUNC), asm.Symbol("second", 0, 4, FUNC)), "first"),
        ((asm.Symbol("section", 0, 0, SECTION), asm.Symbol("label", 0, 0, NOTYPE)), "label"),
        ((asm.Symbol("", 0, 4, FUNC), asm.Symbol("object", 0, 0, OBJECT)), "object"),
        ((asm.Symbol("section", 0, 0, SECTION),), None),
        ((asm.Symbol("function", 1, 4, FUNC),), None),
        ((asm.Symbol("function", 0, 4, FUNC, ".text.b"),), None),
    ],
)
def test_the_name_of_a_function(symbols: tuple[asm.Symbol, ...], name: str | None) -> None:
    image = load(an_object(symbols))
    vaddr = image.sections[1].vaddr
    assert image.names_of([vaddr, 12]) == ({} if name is None else {vaddr: name})
    assert image.names_of([]) == {}


def symbol_section(
    order: str, name: str, kind: int, link: int, entries: tuple[tuple[int, int, int, int], ...]
) -> asm.Section:
    """A symbol table of (name offset, info, section index, value)."""
    data = bytes(24) + b"".join(
        struct.pack(order + "IBBHQQ", offset, info, 0, index, value, 4) for offset, info, index, value in entries
    )
    return asm.Section(name, data, kind, entsize=24, link=link, align=8)


def test_extended_symbol_indices() -> None:
    """gABI, "Symbol Table": with SHN_XINDEX the index is in the SHT_SYMTAB_SHNDX section."""
    strings = asm.Section(".strtab", b"\0one\0two\0", c.SHT_STRTAB)
    entries = ((1, FUNC, c.SHN_XINDEX, 4), (5, FUNC, 1, 8), (0, FUNC, c.SHN_XINDEX, 0))
    sections = (
        asm.Section(".text", b"\xc3" * 16, flags=ALLOC_CODE),
        asm.Section(".text.far", b"\xc3" * 16, flags=ALLOC_CODE),
        symbol_section("<", ".symtab", c.SHT_SYMTAB, 4, entries),
        strings,
        # Of another table, which must not be taken; and one entry short.
        asm.Section(".other", struct.pack("<4I", 0, 1, 1, 1), c.SHT_SYMTAB_SHNDX, link=5),
        asm.Section(".symtab_shndx", struct.pack("<3I", 0, 2, 7), c.SHT_SYMTAB_SHNDX, link=3),
    )
    image = load(asm.elf_file(c.EM_X86_64, sections))
    found = list(image.symbols(image.sections[3]))
    assert [symbol.section_index for symbol in found] == [0, 2, 1, c.SHN_XINDEX]
    text, far = image.sections[1:3]
    assert [symbol.vaddr for symbol in found] == [None, far.vaddr + 4, text.vaddr + 8, None]


def test_more_sections_than_plain_numbers_reach() -> None:
    """Numbers from 0xff00 on are reserved in st_shndx, but plain indices in SHT_SYMTAB_SHNDX."""
    count = 0xFFF8
    symbol, header = struct.Struct("<IBBHQQ").pack, struct.Struct("<IIQQQQIIQQ").pack
    symbols = symbol(0, 0, 0, c.SHN_XINDEX, 4, 0) * 2 + symbol(0, 0, 0, 0xFF05, 4, 0)
    body = b"\xc3" * 8 + bytes(24) + symbols + struct.pack("<4I", 0, c.SHN_ABS, c.SHN_COMMON, 0)
    null = header(0, 0, 0, 0, 0, count, 0, 0, 0, 0)
    table = header(0, c.SHT_SYMTAB, 0, 0, 72, 96, 0, 0, 8, 24)
    extended = header(0, c.SHT_SYMTAB_SHNDX, 0, 0, 168, 16, 1, 0, 4, 4)
    plain = header(0, c.SHT_PROGBITS, ALLOC_CODE, 0, 64, 4, 0, 0, 4, 0) * (count - 3)
    ident = b"\x7fELF\2\1\1" + bytes(9)
    start = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 0, 0)
    image = load(ident + start + body + null + table + extended + plain)
    assert len(image.sections) == count
    vaddrs = [image.sections[number].vaddr + 4 for number in (c.SHN_ABS, c.SHN_COMMON)]
    assert [found.vaddr for found in image.symbols(image.sections[1])] == [None, *vaddrs, None]
