# SPDX-License-Identifier: Apache-2.0
"""The view that tools have of a rewritten file: equal sections and symbols, except for those of the SFrame section."""

import struct
from collections import defaultdict
from typing import Any, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import have_same
from cfi2sframe.elf.headers import SYMBOL_SIZE, ByteOrder
from cfi2sframe.placing.loader_tables import extent_of
from cfi2sframe.placing.pyelftools_view import FileView, expect, span_of
from cfi2sframe.range_map import Span, touches, united

_SYMBOL_TABLES = {"SHT_SYMTAB", "SHT_DYNSYM"}


class Elsewhere(NamedTuple):
    """Addresses in the file without the section, and where the other file has their content."""

    old: Span
    new_start: int

    @property
    def new(self) -> Span:
        """The addresses in the other file."""
        return Span(self.new_start, self.new_start + self.old.end - self.old.start)


def compare_sections(bare: FileView, full: FileView) -> tuple[list[Elsewhere], Span]:
    """Pair the sections, and compare all but the index; read-only data may be elsewhere. Raises `EmbedError`.

    Return the sections that are elsewhere, and the addresses of symbols that were compared one by one.
    """
    numbering = _paired(bare, full)
    pairs = {
        index: (bare.sections[index], full.sections[number])
        for index, number in enumerate(numbering)
        if number not in full.sframe
    }
    moved = dict[int, Elsewhere]()
    for index, (old, new) in pairs.items():
        name, is_loaded = old["name"], old["sh_flags"] & c.SHF_ALLOC
        expect(new["sh_link"] == _renumbered(old["sh_link"], numbering), f"sh_link of {name} changed")
        is_index = old["sh_flags"] & c.SHF_INFO_LINK or old["sh_type"] in ("SHT_REL", "SHT_RELA")
        info = _renumbered(old["sh_info"], numbering) if is_index else old["sh_info"]
        expect(new["sh_info"] == info, f"sh_info of {name} changed")
        expect(old["sh_size"] or bool(old["sh_offset"]) == bool(new["sh_offset"]), f"sh_offset of {name} changed")
        if old["sh_addr"] != new["sh_addr"] or (is_loaded and old["sh_offset"] != new["sh_offset"]):
            expect(is_loaded and not old["sh_flags"] & (c.SHF_WRITE | c.SHF_EXECINSTR), f"{name} may not move")
            for view, header in ((bare, old), (full, new)):
                expect(view.maps(header["sh_addr"], header["sh_offset"], header["sh_size"]), f"{name} is not mapped")
            expect(new["sh_addr"] % max(new["sh_addralign"], 1) == 0, f"{name} is misaligned")
            moved[index] = Elsewhere(Span(old["sh_addr"], old["sh_addr"] + old["sh_size"]), new["sh_addr"])
    is_renumbered = numbering != list(range(len(numbering)))
    lists = any(s["sh_type"] in ("SHT_SYMTAB_SHNDX", "SHT_GROUP") for s in bare.sections)
    expect(not (is_renumbered and lists), "sections were renumbered, and the file has lists of indices")
    symbols = Span(0, 0)
    for index, (old, new) in pairs.items():
        same = have_same(bare.data, full.data, span_of(old), new["sh_offset"])
        if index == bare.header.e_shstrndx:
            first, second = bare.bytes_of(span_of(old)), full.bytes_of(span_of(new))
            expect(second in (first, first + b".sframe\0"), "other names")
        elif old["sh_type"] in _SYMBOL_TABLES and (is_renumbered or not same):
            if touches(united(map(span_of, bare.loads)), span_of(old)):
                symbols = _loaded_symbols(bare, old)
            first, second = bare.bytes_of(span_of(old)), full.bytes_of(span_of(new))
            _compare_symbols(first, second, bare.order, numbering, moved)
        elif index in moved or not old["sh_flags"] & c.SHF_ALLOC:
            expect(same, f"the bytes of {old['name']} changed")
    return list(moved.values()), symbols


def _loaded_symbols(view: FileView, table: dict[str, Any]) -> Span:
    """Return the addresses of the loader's own symbols. Raises `EmbedError` for any other section that is loaded."""
    vaddr, end = table["sh_addr"], table["sh_addr"] + table["sh_size"]
    symbols = extent_of(view, c.DT_SYMTAB) if view.has_symbols else Span(0, 0)
    is_own = symbols.start == vaddr and symbols.end <= end
    others = united(span_of(s) for s in view.sections if s["sh_flags"] & (c.SHF_EXECINSTR | c.SHF_WRITE))
    is_data = not touches(others, span_of(table)) and not vaddr <= view.header.e_entry < end
    expect(is_own and is_data, f"{table['name']} is loaded, is not what DT_SYMTAB leads to, and changed")
    return Span(vaddr, end)


def _paired(bare: FileView, full: FileView) -> list[int]:
    """Return the number in the full file of each section of the bare one.

    The SFrame section may have the number of an inactive header.
    """
    numbering = list(range(len(bare.sections)))
    are_inactive = (bare.sections[number]["sh_type"] == "SHT_NULL" for number in full.sframe)
    if len(numbering) == len(full.sections) and all(are_inactive):
        same = (_kind(bare, number) == _kind(full, number) for number in numbering if number not in full.sframe)
        expect(all(same), "a section changed")
        return numbering
    kinds = defaultdict(list)
    for number in reversed([n for n in range(len(full.sections)) if n not in full.sframe]):
        kinds[_kind(full, number)].append(number)
    numbering = []
    for index in range(len(bare.sections)):
        numbers = kinds[_kind(bare, index)]
        expect(bool(numbers), f"section {bare.sections[index]['name']} is missing, or changed")
        numbering.append(numbers.pop())
    expect(not any(kinds.values()), "there are other new sections")
    return numbering


def _kind(view: FileView, index: int) -> tuple[Any, ...]:
    section = view.sections[index]
    size = 0 if index == view.header.e_shstrndx else section["sh_size"]
    # New names follow the old ones, so an offset is a name.
    return (*(section[key] for key in ("sh_name", "sh_type", "sh_flags", "sh_addralign", "sh_entsize")), size)


def _renumbered(index: int, numbering: list[int]) -> int:
    """Return the new index of a section; one past the table, as a damaged null section may have, is kept."""
    return numbering[index] if index < len(numbering) else index


def _compare_symbols(
    first: bytes, second: bytes, order: ByteOrder, numbering: list[int], moved: dict[int, Elsewhere]
) -> None:
    whole = len(first) // SYMBOL_SIZE * SYMBOL_SIZE
    expect(first[whole:] == second[whole:], "the end of a symbol table changed")
    entry = struct.Struct(order + "IBBHQQ")
    pairs = zip(entry.iter_unpack(first[:whole]), entry.iter_unpack(second[:whole]), strict=True)
    for at, ((name, info, other, section, value, size), symbol) in enumerate(pairs):
        delta = 0
        if section in moved and moved[section].old.start <= value <= moved[section].old.end:
            # Other modules may have the addresses of the others.
            expect(info >> 4 == c.STB_LOCAL, f"symbol {at} is of a section that has moved")
            delta = moved[section].new_start - moved[section].old.start
        wanted = (name, info, other, _renumbered(section, numbering), value + delta, size)
        expect(symbol == wanted, f"symbol {at} changed")
