# SPDX-License-Identifier: Apache-2.0
"""New indices for the sections of a linked file, wherever the file mentions an index."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from sys import byteorder
from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.elf.constants import (
    SHF_INFO_LINK,
    SHN_ABS,
    SHN_LORESERVE,
    SHT_DYNSYM,
    SHT_REL,
    SHT_RELA,
    SHT_SYMTAB,
    SHT_SYMTAB_SHNDX,
    STB_LOCAL,
)
from cfi2sframe.elf.records import SYMBOL_SIZE
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite.movable import TAG_OF_NAME, dynamic_entries, symbols_in

if TYPE_CHECKING:
    from cfi2sframe.elf.records import SectionHeader
    from cfi2sframe.rewrite.gate import Layout

_ADDRESS_END = 1 << 64


def renumbered_header(entry: SectionHeader, numbering: list[int]) -> SectionHeader:
    """Return the section header with the indices in sh_link and sh_info replaced.

    Raises `EmbedError` when one of them leaves the table.
    """
    is_index = entry.flags & SHF_INFO_LINK or entry.type in (SHT_REL, SHT_RELA)
    try:
        link = max(numbering[entry.link], 0)
        return entry._replace(link=link, info=max(numbering[entry.info], 0) if is_index else entry.info)
    except IndexError as error:
        raise EmbedError(f"a section is linked to section {entry.link}, which is not in the table") from error


def changed_contents(layout: Layout, numbering: list[int], new_vaddrs: dict[int, int]) -> dict[int, bytes]:
    """Return the new bytes of the sections that mention section indices or the addresses of moved sections.

    Symbol tables hold both, `.dynamic` addresses. `numbering` gives -1 for a section that goes; its symbols
    become absolute. `new_vaddrs` maps the indices of moved sections to their addresses. Raises `EmbedError`
    when the file keeps section indices elsewhere, having too many of them.
    """
    if numbering == list(range(len(numbering))) and not new_vaddrs:
        return {}
    found: dict[int, bytearray] = {}
    table = [SHN_ABS if number < 0 else number for number in numbering]
    for index, section in enumerate(layout.sections):
        if section.type == SHT_SYMTAB_SHNDX:
            raise EmbedError("the file has more sections than symbols can name directly")
        if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or section.size % SYMBOL_SIZE or not layout.has_content(index):
            continue
        symbols = section_bytes(layout, index)
        found[index] = bytearray(with_section_indices(symbols, table, little_endian=layout.order == "<"))
    for place in _address_fields(layout, new_vaddrs):
        if place.holder not in found:
            found[place.holder] = bytearray(section_bytes(layout, place.holder))
        found[place.holder][place.offset : place.offset + 8] = place.content
    return {index: bytes(content) for index, content in found.items() if content != section_bytes(layout, index)}


class _Field(NamedTuple):
    """Eight bytes to be written: the section that holds them, their offset in it, and what they become."""

    holder: int
    offset: int
    content: bytes


def _address_fields(layout: Layout, new_vaddrs: dict[int, int]) -> list[_Field]:
    """Return the dynamic tags and local symbols that lead to a section with a new address.

    Raises `EmbedError` when a symbol would have to lie outside of all addresses with its section.
    """
    if not new_vaddrs:
        return []
    wanted = {(TAG_OF_NAME.get(layout.names[i]), layout.sections[i].vaddr): vaddr for i, vaddr in new_vaddrs.items()}
    fields = [
        (entry.value_file_offset, wanted[entry.tag, entry.value])
        for entry in dynamic_entries(layout)
        if (entry.tag, entry.value) in wanted
    ]
    for symbol in symbols_in(layout, frozenset(new_vaddrs)):
        if symbol.binding == STB_LOCAL:
            index = symbol.section_index
            value = symbol.value + new_vaddrs[index] - layout.sections[index].vaddr
            if not 0 <= value < _ADDRESS_END:
                raise EmbedError(f"a symbol of section {layout.names[index]} is far outside of it")
            fields.append((symbol.value_file_offset, value))
    order: Literal["little", "big"] = "little" if layout.order == "<" else "big"
    starts = sorted((s.file_offset, index) for index, s in enumerate(layout.sections) if layout.has_content(index))
    found = []
    for file_offset, value in fields:
        start, holder = starts[bisect_right(starts, (file_offset, len(layout.sections))) - 1]
        found.append(_Field(holder, file_offset - start, value.to_bytes(8, order)))
    return found


def section_bytes(layout: Layout, index: int) -> bytes:
    """Return the bytes of section `index`."""
    section = layout.sections[index]
    return bytes(layout.data[section.file_offset : section.file_offset + section.size])


def with_section_indices(symbols: bytes, table: list[int], *, little_endian: bool) -> bytes:
    """Return the symbols with every st_shndx below SHN_LORESERVE replaced by what `table` has for it."""
    foreign = little_endian != (byteorder == "little")
    halves = array("H", symbols)
    if foreign:
        halves.byteswap()
    # st_shndx is the fourth of the twelve 16-bit halves of a symbol.
    halves[3::12] = array("H", [n if n >= SHN_LORESERVE or n >= len(table) else table[n] for n in halves[3::12]])
    if foreign:
        halves.byteswap()
    return halves.tobytes()
