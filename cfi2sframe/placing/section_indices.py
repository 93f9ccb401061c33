# SPDX-License-Identifier: Apache-2.0
"""New section indices in a linked file: their order, and every field that holds an index."""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from cfi2sframe.constants import elf as c
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import symbols_of
from cfi2sframe.placing.movable import TAG_OF_NAME, dynamic_entries, is_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cfi2sframe.elf.headers import ElfSection
    from cfi2sframe.placing.gate import LinkedFile


def numbering_with(file: LinkedFile, new_vaddrs: Mapping[int, int], section_vaddr: int) -> list[int]:
    """Return the new index of each section when one is added at `section_vaddr`; it gets the index that is left out.

    The new section comes last, unless sections move to `new_vaddrs`: then the added and the moved ones are inserted in
    address order, because patchelf, to make room for program headers, moves the sections from index 1 on up to the
    first that is not in the way.
    """
    count = len(file.sections)
    if not new_vaddrs:
        return list(range(count))
    staying = [index for index in range(count) if index not in new_vaddrs]
    loaded = sorted(
        (file.sections[i].vaddr, at) for at, i in enumerate(staying) if file.sections[i].flags & c.SHF_ALLOC
    )
    vaddrs = [vaddr for vaddr, _ in loaded]
    # By number of lower addresses: the last position of the sections there.
    lasts = list(accumulate((at for _, at in loaded), max))
    added = {**new_vaddrs, count: section_vaddr}
    after: dict[int, list[int]] = {}
    for index, vaddr in sorted(added.items(), key=lambda item: item[1]):
        lower = bisect_left(vaddrs, vaddr)
        after.setdefault(lasts[lower - 1] if lower else 0, []).append(index)
    order = [index for at, old in enumerate(staying) for index in (old, *after.get(at, ()))]
    numbering = [0] * count
    for new, old in enumerate(order):
        if old < count:
            numbering[old] = new
    return numbering


def renumbered_header(entry: ElfSection, numbering: list[int]) -> ElfSection:
    """Return the section header with the indices in sh_link and sh_info replaced.

    Raises `EmbedError` when one of them leaves the table.
    """
    is_index = entry.flags & c.SHF_INFO_LINK or entry.type in (c.SHT_REL, c.SHT_RELA)
    try:
        link = numbering[entry.link]
        return entry._replace(link=link, info=numbering[entry.info] if is_index else entry.info)
    except IndexError as error:
        raise EmbedError(f"a section is linked to section {entry.link}, which is not in the table") from error


def changed_contents(file: LinkedFile, numbering: list[int], new_vaddrs: Mapping[int, int]) -> dict[int, bytes]:
    """Return the new bytes of the sections that hold section indices or the addresses of moved sections.

    Symbol tables hold both, `.dynamic` holds addresses. `new_vaddrs` maps the indices of moved sections to their new
    addresses. Raises `EmbedError` when the file has an SHT_SYMTAB_SHNDX, which is for more sections than st_shndx can
    hold.
    """
    if numbering == list(range(len(numbering))) and not new_vaddrs:
        return {}
    if any(section.type == c.SHT_SYMTAB_SHNDX for section in file.sections):
        raise EmbedError("the file has more sections than st_shndx can hold")
    found = {table.index: _changed_symbols(file, table, numbering, new_vaddrs) for table in file.symbol_tables}
    tables = {
        (TAG_OF_NAME.get(file.sections[i].name), file.sections[i].vaddr): vaddr for i, vaddr in new_vaddrs.items()
    }
    for entry in dynamic_entries(file):
        holder = file.stored_at(entry.value_file_offset)
        if (entry.tag, entry.value) in tables and holder is not None:
            content = found.setdefault(holder.index, bytearray(file.section_bytes(holder.index)))
            place = entry.value_file_offset - holder.file_offset
            struct.pack_into(file.order + "Q", content, place, tables[entry.tag, entry.value])
    return {index: bytes(content) for index, content in found.items() if content != file.section_bytes(index)}


def _changed_symbols(
    file: LinkedFile, table: ElfSection, numbering: list[int], new_vaddrs: Mapping[int, int]
) -> bytearray:
    content = bytearray(file.section_bytes(table.index))
    for at, (info, index, value) in symbols_of(file, table):
        if index >= min(len(numbering), c.SHN_LORESERVE):
            continue
        number = numbering[index]
        new_value = value
        if index in new_vaddrs and info >> 4 == c.STB_LOCAL and is_inside(file.sections[index], value):
            new_value += new_vaddrs[index] - file.sections[index].vaddr
        if (number, new_value) != (index, value):
            struct.pack_into(file.order + "HQ", content, at + 6, number, new_value)
    return content
