# SPDX-License-Identifier: Apache-2.0
"""Take one header out of the section table: later indices count down wherever the file mentions them."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import (
    SHF_ALLOC,
    SHF_INFO_LINK,
    SHN_ABS,
    SHN_LORESERVE,
    SHT_DYNSYM,
    SHT_NOBITS,
    SHT_NULL,
    SHT_REL,
    SHT_RELA,
    SHT_SYMTAB,
    SHT_SYMTAB_SHNDX,
)
from cfi2sframe.elf.embedding.assemble import behind_alignment
from cfi2sframe.elf.embedding.layout import SFRAME_NAME, round_up
from cfi2sframe.elf.embedding.splice import Splice
from cfi2sframe.elf.records import SECTION_HEADER_SIZE, SYMBOL_SIZE
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from cfi2sframe.elf.embedding.layout import Layout
    from cfi2sframe.elf.records import FileHeader, SectionHeader


def without_section_header(
    layout: Layout,
    header: FileHeader,
    removed: int | None,
    moved: dict[int, tuple[int, int]],
    cuts: list[Splice],
    splices: list[Splice],
) -> tuple[list[Splice], FileHeader]:
    """Return all splices with those of the section table, symbols and names added, and the new ELF header.

    `removed` is the index that goes, None for a file whose section has no header; `moved` maps indices to new
    (address, file offset); `cuts` are removals in the file before; `splices` the other changes so far.
    """
    names_cut = _names_cut(layout, removed)
    table = layout.header.section_headers_offset
    table_end = table + SECTION_HEADER_SIZE * len(layout.sections)
    cuts = [*cuts, *names_cut]
    shrink = 0
    if removed is not None and table >= layout.loaded_end:
        shrink = round_up(SECTION_HEADER_SIZE, behind_alignment(layout, table_end))
        cuts.append(Splice(table_end, shrink, b""))
    headers = []
    for index, old in enumerate(layout.sections):
        if index == removed:
            continue
        entry = old
        if index in moved:
            entry = entry._replace(vaddr=moved[index][0], file_offset=moved[index][1])
        elif entry.type not in (SHT_NULL, SHT_NOBITS) or not entry.flags & SHF_ALLOC:
            entry = entry._replace(file_offset=_pulled(cuts, entry.file_offset))
        if index == layout.names_index and names_cut:
            entry = entry._replace(size=entry.size - len(SFRAME_NAME) - 1)
        headers.append(entry if removed is None else _renumbered(entry, removed))
    content = b"".join(entry.pack(layout.order) for entry in headers)
    result = splices if removed is None else _renumbered_symbols(layout, removed, splices)
    result = [*result, *names_cut]
    size = SECTION_HEADER_SIZE * len(layout.sections)
    result.append(Splice(table, size, content.ljust(size - shrink, b"\0")))
    names_index = header.section_names_index
    if removed is not None and names_index > removed:
        names_index -= 1
    return result, header._replace(
        section_headers_offset=_pulled(cuts, table),
        section_header_count=len(headers),
        section_names_index=names_index,
    )


def _pulled(cuts: list[Splice], file_offset: int) -> int:
    return file_offset - sum(cut.removed_size for cut in cuts if cut.file_offset < file_offset)


def _names_cut(layout: Layout, removed: int | None) -> list[Splice]:
    """Drop the name when it is the last one of the table, unused by others, and what follows can move up."""
    if removed is None:
        return []
    table = layout.sections[layout.names_index]
    end = table.file_offset + table.size
    name = SFRAME_NAME.encode() + b"\0"
    start = end - len(name)
    strings = bytes(layout.data[table.file_offset : end])
    users = [i for i, s in enumerate(layout.sections) if s.name_offset >= table.size - len(name) and i != removed]
    if not strings.endswith(b"\0" + name) or users or table.file_offset < layout.loaded_end:
        return []
    growth = round_up(len(name), behind_alignment(layout, end))
    starts = [s.file_offset for i, s in enumerate(layout.sections) if layout.has_content(i)]
    starts.append(layout.header.section_headers_offset)
    behind = min((place for place in starts if place >= end), default=len(layout.data))
    if start + growth > behind:
        return []
    return [Splice(start, growth, b"")]


def _renumbered(entry: SectionHeader, removed: int) -> SectionHeader:
    link, info = entry.link, entry.info
    if link > removed:
        link -= 1
    if (entry.flags & SHF_INFO_LINK or entry.type in (SHT_REL, SHT_RELA)) and info > removed:
        info -= 1
    return entry._replace(link=link, info=info)


def _renumbered_symbols(layout: Layout, removed: int, splices: list[Splice]) -> list[Splice]:
    """Count down st_shndx in every symbol table; the changes already due there are merged in."""
    result = splices
    for index, section in enumerate(layout.sections):
        if section.type == SHT_SYMTAB_SHNDX:
            raise EmbedError("the file has more sections than symbols can name directly")
        if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or not layout.has_content(index):
            continue
        size = section.size - section.size % SYMBOL_SIZE
        content = bytes(layout.data[section.file_offset : section.file_offset + size])
        halves = array("H", content)
        foreign = layout.order != ("<" if struct.pack("=H", 1) == struct.pack("<H", 1) else ">")
        if foreign:
            halves.byteswap()
        old = halves[3::12]
        new = array("H", [_counted_down(number, removed) for number in old])
        if new == old:
            continue
        halves[3::12] = new
        if foreign:
            halves.byteswap()
        table = bytearray(halves.tobytes())
        end = section.file_offset + size
        inside = [s for s in result if section.file_offset <= s.file_offset < end]
        for splice in inside:
            start = splice.file_offset - section.file_offset
            table[start : start + splice.removed_size] = splice.content or b""
        result = [s for s in result if s not in inside]
        result.append(Splice(section.file_offset, size, bytes(table)))
    return result


def _counted_down(section_index: int, removed: int) -> int:
    if section_index < removed or section_index >= SHN_LORESERVE:
        return section_index
    return SHN_ABS if section_index == removed else section_index - 1
