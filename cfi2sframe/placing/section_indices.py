# SPDX-License-Identifier: Apache-2.0
"""New section indices in a linked file: their order, and every field that holds an index."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from sys import byteorder
from typing import TYPE_CHECKING

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.headers import SYMBOL_SIZE
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.movable import TAG_OF_NAME, dynamic_entries, symbols_in
from cfi2sframe.printable import shown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cfi2sframe.elf.headers import ElfSection
    from cfi2sframe.placing.gate import LinkedFile

_ADDRESS_END = 1 << 64


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
        link = max(numbering[entry.link], 0)
        return entry._replace(link=link, info=max(numbering[entry.info], 0) if is_index else entry.info)
    except IndexError as error:
        raise EmbedError(f"a section is linked to section {entry.link}, which is not in the table") from error


def changed_contents(file: LinkedFile, numbering: list[int], new_vaddrs: Mapping[int, int]) -> dict[int, bytes]:
    """Return the new bytes of the sections that hold section indices or the addresses of moved sections.

    Symbol tables hold both, `.dynamic` holds addresses. `numbering` is -1 for a section that is removed; its symbols
    become absolute. `new_vaddrs` maps the indices of moved sections to their new addresses. Raises `EmbedError` when
    the file has an SHT_SYMTAB_SHNDX, which is for more sections than st_shndx can hold.
    """
    if numbering == list(range(len(numbering))) and not new_vaddrs:
        return {}
    found: dict[int, bytearray] = {}
    table = [c.SHN_ABS if number < 0 else number for number in numbering]
    for index, section in enumerate(file.sections):
        if section.type == c.SHT_SYMTAB_SHNDX:
            raise EmbedError("the file has more sections than st_shndx can hold")
        if section.type not in (c.SHT_SYMTAB, c.SHT_DYNSYM) or section.size % SYMBOL_SIZE or not section.is_stored:
            continue
        symbols = file.section_bytes(index)
        found[index] = bytearray(with_section_indices(symbols, table, little_endian=file.order == "<"))
    for holder, offset, content in _address_fields(file, new_vaddrs):
        if holder not in found:
            found[holder] = bytearray(file.section_bytes(holder))
        found[holder][offset : offset + 8] = content
    return {index: bytes(content) for index, content in found.items() if content != file.section_bytes(index)}


def _address_fields(file: LinkedFile, new_vaddrs: Mapping[int, int]) -> list[tuple[int, int, bytes]]:
    """Return the values of dynamic tags and local symbols that refer to a section with a new address.

    Each has the index of its own section, the offset in it, and eight bytes. Raises `EmbedError` when the new value of
    a symbol does not fit into 64 bits.
    """
    if not new_vaddrs:
        return []
    wanted = {
        (TAG_OF_NAME.get(file.sections[i].name), file.sections[i].vaddr): vaddr for i, vaddr in new_vaddrs.items()
    }
    fields = [
        (entry.value_file_offset, wanted[entry.tag, entry.value])
        for entry in dynamic_entries(file)
        if (entry.tag, entry.value) in wanted
    ]
    for symbol in symbols_in(file, frozenset(new_vaddrs)):
        if symbol.binding == c.STB_LOCAL:
            index = symbol.section_index
            value = symbol.value + new_vaddrs[index] - file.sections[index].vaddr
            if not 0 <= value < _ADDRESS_END:
                raise EmbedError(f"a symbol of section {shown_name(file.sections[index].name)} is far outside of it")
            fields.append((symbol.value_file_offset, value))
    starts = [section.start for section in file.stored]
    holders = [file.stored[bisect_right(starts, file_offset) - 1] for file_offset, _ in fields]
    return [
        (holder.number, file_offset - holder.start, struct.pack(file.order + "Q", value))
        for holder, (file_offset, value) in zip(holders, fields, strict=True)
    ]


def with_section_indices(symbols: bytes, table: list[int], *, little_endian: bool) -> bytes:
    """Return the symbols with every st_shndx below SHN_LORESERVE replaced by its entry in `table`."""
    foreign = little_endian != (byteorder == "little")
    halves = array("H", symbols)
    if foreign:
        halves.byteswap()
    # st_shndx is the fourth of the twelve 16-bit halves of a symbol.
    halves[3::12] = array("H", [n if n >= c.SHN_LORESERVE or n >= len(table) else table[n] for n in halves[3::12]])
    if foreign:
        halves.byteswap()
    return halves.tobytes()
