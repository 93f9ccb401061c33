# SPDX-License-Identifier: Apache-2.0
"""ELF images: the sections of a linked file, symbols, and names of functions."""

import struct

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import ElfImage
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.images import ALLOC_CODE, an_object, linked


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


@pytest.mark.parametrize(("more", "count"), [(0, 3), (1, 3), (23, 3), (-1, 2), (-24, 2), (-25, 1), (-72, 0)])
def test_part_of_a_record_is_none(more: int, count: int) -> None:
    image = load(asm.elf_file(62, (asm.Section(".rela", bytes(72 + more), c.SHT_RELA), asm.Section(".text", b""))))
    assert list(image.records(image.sections[1], "QQq")) == [(0, 0, 0)] * count


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


def test_functions_have_symbols_of_functions_or_labels_with_a_size() -> None:
    symbols = [asm.Symbol(f"{n}", 4 * n, size, kind) for n, (size, kind) in enumerate(((0, FUNC), (4, NOTYPE)))]
    image = load(an_object((*symbols, asm.Symbol("label", 8, 0, NOTYPE), asm.Symbol("object", 12, 4, OBJECT))))
    assert [symbol.name for symbol in image.functions().values()] == ["0", "1"]


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
