# SPDX-License-Identifier: Apache-2.0
"""The sections that may move to another address, the indices that all sections then have, and what depends on both.

A section may move if its readers follow a header or a dynamic entry to it: the interpreter's name (PT_INTERP), notes of
some owners (PT_NOTE, PT_GNU_PROPERTY), and tables of the dynamic linker (DT_HASH and so on). It stays if a global
symbol is in it. Other possible readers depend on its `Owner`.
"""

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple, NewType

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import SYMBOL_SIZE, ElfSection, ProgramHeader
from cfi2sframe.elf.notes import are_of_tools
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import LinkedFile
from cfi2sframe.range_map import Span, touches, united

#: The index of a section in the rewritten file; plain numbers are those of the file as it was.
NewIndex = NewType("NewIndex", int)
#: Notes that tools also find by the name of their section: without a PT_NOTE, little is lost.
NAMED_NOTES: Final = frozenset(
    {
        ".note.gnu.property",
        ".note.gnu.build-id",
        ".note.ABI-tag",
        ".note.package",
        ".note.dlopen",
        ".note.gnu.gold-version",
    }
)
BUILD_ID_NAME: Final = ".note.gnu.build-id"
PACKAGE_NAME: Final = ".note.package"
#: Sections that readers find by a dynamic tag only.
TAG_OF_NAME: Final = {
    ".gnu.hash": c.DT_GNU_HASH,
    ".hash": c.DT_HASH,
    ".dynsym": c.DT_SYMTAB,
    ".dynstr": c.DT_STRTAB,
    ".gnu.version": c.DT_VERSYM,
    ".gnu.version_d": c.DT_VERDEF,
    ".gnu.version_r": c.DT_VERNEED,
}
#: Between sections, linkers write zeros; patchelf writes X or Z where a section was.
_FILLING: Final = b"\0XZ"
#: Bytes of the largest section of notes that is read.
_MAX_NOTES_SIZE: Final = 1 << 12
#: Segments that describe single sections, and move with them.
FOLLOWING_TYPES: Final = frozenset({c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY})
ENCLOSING_TYPES: Final = frozenset({c.PT_LOAD, c.PT_PHDR, c.PT_GNU_RELRO})


class Owner(IntEnum):
    """The readers of a section, in the order in which sections move to make room.

    A loader follows only headers and dynamic entries. Notes are for tools, which follow headers; but a program may read
    its own notes, and programs do read those of their package.
    """

    LOADER = 0
    TOOLS = 1
    PROGRAM = 2


class SectionPlace(NamedTuple):
    """The virtual address and the file offset of a section."""

    vaddr: int
    file_offset: int


def _is_inside(section: ElfSection, value: int) -> bool:
    """Return whether a symbol of a section is in it, or at its end.

    GNU ld gives `__ehdr_start` the index of the first section.
    """
    return section.vaddr <= value <= section.end_vaddr


def movable_sections(file: LinkedFile, start: int, end: int) -> dict[int, Owner]:
    """Return the owners of the sections between two file offsets that may move, by their indices."""
    tags = Counter((entry.tag, entry.value) for entry in file.dynamic)
    following = [segment for segment in file.segments if segment.type in FOLLOWING_TYPES]
    others = united(
        segment.file_span
        for segment in file.segments
        if segment.type not in FOLLOWING_TYPES and segment.type not in ENCLOSING_TYPES
    )
    owners = {
        index: owner
        for index in file.indices_within(Span(start, end))
        if not touches(others, file.sections[index].file_span)
        and (owner := _owner_of(file, file.sections[index], tags, following)) is not None
    }
    for table in file.symbol_tables if owners else ():
        for info, index, value in file.symbol_fields(table):
            if index in owners and info >> 4 != c.STB_LOCAL and _is_inside(file.sections[index], value):
                del owners[index]
    return owners


def of_whole_segments(file: LinkedFile, indices: Iterable[int]) -> frozenset[int]:
    """Return the sections, except those of segments with other sections, too: a segment moves as a whole or stays."""
    whole = set(indices)
    for segment in file.segments:
        covered = file.indices_within(segment.file_span) if segment.type in FOLLOWING_TYPES else []
        if not whole.issuperset(covered):
            whole.difference_update(covered)
    return frozenset(whole)


def _owner_of(
    file: LinkedFile, section: ElfSection, tags: Counter[tuple[int, int]], following: list[ProgramHeader]
) -> Owner | None:
    """Return the owner of a section that may move; None for any other section."""
    if not section.flags & c.SHF_ALLOC or section.flags & (c.SHF_WRITE | c.SHF_EXECINSTR):
        return None
    start, end = section.file_span
    touching = [s for s in following if s.file_offset < end and start < s.file_span.end]
    if any(s.file_offset > start or s.file_span.end < end for s in touching):
        return None
    if section.name == ".interp":
        return Owner.LOADER if len(touching) == 1 else None
    if section.type == c.SHT_NOTE:
        is_known = section.size <= _MAX_NOTES_SIZE and (section.name in NAMED_NOTES or touching)
        of_tools = is_known and are_of_tools(file.section_bytes(section), file.byte_order, section.alignment)
        if not is_known or of_tools is None:
            return None
        is_property = any(s.type == c.PT_GNU_PROPERTY and s.file_span == section.file_span for s in touching)
        return Owner.LOADER if is_property else Owner.TOOLS if of_tools else Owner.PROGRAM
    tag = TAG_OF_NAME.get(section.name)
    is_table = tag is not None and not touching and tags[tag, section.vaddr] == 1 and _is_whole(file, section)
    return Owner.LOADER if is_table else None


def _is_whole(file: LinkedFile, section: ElfSection) -> bool:
    """Return whether only filling follows a table.

    A damaged section header may give it fewer bytes than its readers use.
    """
    end = section.file_span.end
    load_end = max(load.file_span.end for load in file.loads if load.file_offset <= section.file_offset)
    return not bytes(file.data[end : min(file.next_described(end), load_end)]).strip(_FILLING)


# Indices and contents


def numbering_with(file: LinkedFile, places: Mapping[int, SectionPlace], section_vaddr: int) -> list[NewIndex]:
    """Return the new index of each section when one is added at `section_vaddr`; that one gets the index left out.

    The new section comes last, unless sections move to `places`: then the added and the moved ones are inserted in
    address order, because patchelf, to make room for program headers, moves the sections from index 1 on up to the
    first that is not in the way.
    """
    count = len(file.sections)
    if not places:
        return list(map(NewIndex, range(count)))
    staying = [index for index in range(count) if index not in places]
    loaded = sorted(
        (file.sections[i].vaddr, at) for at, i in enumerate(staying) if file.sections[i].flags & c.SHF_ALLOC
    )
    vaddrs = [vaddr for vaddr, _ in loaded]
    # By number of lower addresses: the last position of the sections there.
    lasts = list(accumulate((at for _, at in loaded), max))
    added = [(place.vaddr, index) for index, place in places.items()]
    after: dict[int, list[int]] = {}
    for vaddr, index in sorted([*added, (section_vaddr, count)], key=itemgetter(0)):
        lower = bisect_left(vaddrs, vaddr)
        after.setdefault(lasts[lower - 1] if lower else 0, []).append(index)
    order = [index for at, old in enumerate(staying) for index in (old, *after.get(at, ()))]
    new_of = {old: NewIndex(new) for new, old in enumerate(order)}
    return [new_of[old] for old in range(count)]


def renumbered_header(header: ElfSection, numbering: Sequence[NewIndex]) -> ElfSection:
    """Return a section header with the indices in sh_link and sh_info replaced.

    Raises `EmbedError` when one of them leaves the table.
    """
    is_index = header.flags & c.SHF_INFO_LINK or header.type in (c.SHT_REL, c.SHT_RELA)
    try:
        link = numbering[header.link]
        return header._replace(link=link, info=numbering[header.info] if is_index else header.info)
    except IndexError as error:
        raise EmbedError(f"a section is linked to section {header.link}, which is not in the table") from error


def changed_contents(
    file: LinkedFile, numbering: Sequence[NewIndex], places: Mapping[int, SectionPlace]
) -> dict[int, bytes]:
    """Return the new bytes of the sections that hold section indices or the addresses of moved sections.

    Symbol tables hold both, `.dynamic` holds addresses. Raises `EmbedError` when the file has an SHT_SYMTAB_SHNDX,
    which is for more sections than st_shndx can hold.
    """
    if numbering == list(range(len(numbering))) and not places:
        return {}
    if any(section.type == c.SHT_SYMTAB_SHNDX for section in file.sections):
        raise EmbedError("the file has more sections than st_shndx can hold")
    contents = {table.index: _changed_symbols(file, table, numbering, places) for table in file.symbol_tables}
    tables = {
        (TAG_OF_NAME.get(file.sections[index].name), file.sections[index].vaddr): place.vaddr
        for index, place in places.items()
    }
    for entry in file.dynamic:
        holder = file.stored_at(entry.value_file_offset)
        if (entry.tag, entry.value) in tables and holder is not None:
            content = contents.setdefault(holder.index, bytearray(file.section_bytes(holder)))
            at = entry.value_file_offset - holder.file_offset
            struct.pack_into(file.byte_order + "Q", content, at, tables[entry.tag, entry.value])
    return {index: bytes(new) for index, new in contents.items() if new != file.section_bytes(file.sections[index])}


def _changed_symbols(
    file: LinkedFile, table: ElfSection, numbering: Sequence[NewIndex], places: Mapping[int, SectionPlace]
) -> bytearray:
    content = bytearray(file.section_bytes(table))
    end = min(len(numbering), c.SHN_LORESERVE)
    for symbol_index, (info, index, value) in enumerate(file.symbol_fields(table)):
        if index >= end:
            continue
        new_value = value
        if index in places and info >> 4 == c.STB_LOCAL and _is_inside(file.sections[index], value):
            new_value += places[index].vaddr - file.sections[index].vaddr
        if (numbering[index], new_value) != (index, value):
            at = SYMBOL_SIZE * symbol_index + 6
            struct.pack_into(file.byte_order + "HQ", content, at, numbering[index], new_value)
    return content
