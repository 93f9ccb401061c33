# SPDX-License-Identifier: Apache-2.0
"""The sections that may move to another address, because only a program header or a dynamic entry refers to them.

These are the interpreter's name (PT_INTERP), notes (PT_NOTE, PT_GNU_PROPERTY), and tables of the dynamic linker that a
DT_ entry points to. A section to which a global symbol or a relocation refers may not move, since code may contain its
address; nor may a note with an address relative to itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import ARCHES
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import DYNAMIC_ENTRY_SIZE, SYMBOL_SIZE
from cfi2sframe.elf.notes import may_be_elsewhere
from cfi2sframe.elf.references import packed_words, words_of
from cfi2sframe.placing.gate import symbols_of
from cfi2sframe.range_map import Span, touches, united

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.elf.headers import ElfSection, ProgramHeader
    from cfi2sframe.placing.gate import LinkedFile

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
#: Bytes of the largest section of notes that is read for addresses relative to itself.
_MAX_NOTES_SIZE: Final = 1 << 12
_RELATIVE_TYPES: Final = frozenset(arch.relative_relocation for arch in ARCHES)
#: Segments that describe single sections, and move with them.
FOLLOWING_TYPES: Final = frozenset({c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY})
ENCLOSING_TYPES: Final = frozenset({c.PT_LOAD, c.PT_PHDR, c.PT_GNU_RELRO})


class SectionPlace(NamedTuple):
    """The virtual address and the file offset of a section."""

    vaddr: int
    file_offset: int


class DynamicEntry(NamedTuple):
    """An Elf64_Dyn, and the file offset of its value."""

    tag: int
    value: int
    value_file_offset: int


def dynamic_entries(file: LinkedFile) -> tuple[DynamicEntry, ...]:
    """Return the entries of `.dynamic` up to DT_NULL; none for a static executable."""
    for section in file.sections:
        if section.type == c.SHT_DYNAMIC and section.is_stored:
            start = section.file_offset
            data = file.data[start : start + section.size - section.size % DYNAMIC_ENTRY_SIZE]
            pairs = takewhile(lambda pair: pair[0] != c.DT_NULL, struct.iter_unpack(file.order + "QQ", data))
            numbered = enumerate(pairs)
            return tuple(DynamicEntry(tag, value, start + DYNAMIC_ENTRY_SIZE * n + 8) for n, (tag, value) in numbered)
    return ()


def symbols_among(file: LinkedFile, names: Iterable[bytes]) -> set[bytes]:
    """Return those of some names that symbols have."""
    wanted, found = tuple(name + b"\0" for name in names), set[bytes]()
    for table in file.symbol_tables:
        strings = file.section_bytes(table.link) if table.link < len(file.sections) else b""
        content = file.section_bytes(table.index)
        whole = content[: len(content) // SYMBOL_SIZE * SYMBOL_SIZE]
        offsets = (offset for (offset,) in struct.iter_unpack(file.order + "I20x", whole))
        found.update(strings[at : strings.index(b"\0", at)] for at in offsets if strings.startswith(wanted, at))
    return found


def is_inside(section: ElfSection, value: int) -> bool:
    """Whether a symbol of a section is in it, or at its end. GNU ld gives `__ehdr_start` the first section's index."""
    return section.vaddr <= value <= section.vaddr + section.size


def movable_sections(file: LinkedFile, start: int, end: int) -> frozenset[int]:
    """Return the indices of the sections between two file offsets that may move to another address."""
    tags = Counter((entry.tag, entry.value) for entry in dynamic_entries(file))
    following = [segment for segment in file.segments if segment.type in FOLLOWING_TYPES]
    others = united(
        segment.file_span
        for segment in file.segments
        if segment.type not in FOLLOWING_TYPES and segment.type not in ENCLOSING_TYPES
    )
    found = {
        index
        for index in file.indices_within(Span(start, end))
        if not touches(others, file.sections[index].file_span) and _is_movable(file, index, tags, following)
    }
    if not found:
        return frozenset()
    for table in file.symbol_tables:
        named = ((index, value) for _, (info, index, value) in symbols_of(file, table) if info >> 4 != c.STB_LOCAL)
        found -= {index for index, value in named if index in found and is_inside(file.sections[index], value)}
    low = min((file.sections[index].vaddr for index in found), default=0)
    high = max((file.sections[index].vaddr + file.sections[index].size for index in found), default=0)
    addresses = sorted(_relocated_addresses(file, low, high))
    found = {index for index in found if not _holds_any(file.sections[index], addresses)}
    for covered in (file.indices_within(segment.file_span) for segment in following):
        if not found.issuperset(covered):
            # A segment moves with all of its sections, or with none.
            found.difference_update(covered)
    return frozenset(found)


def _holds_any(section: ElfSection, addresses: list[int]) -> bool:
    """Whether any of some ascending addresses lies in a section."""
    first = bisect_left(addresses, section.vaddr)
    return first < len(addresses) and addresses[first] < section.vaddr + section.size


def _is_movable(file: LinkedFile, index: int, tags: Counter[tuple[int, int]], following: list[ProgramHeader]) -> bool:
    section = file.sections[index]
    if not section.flags & c.SHF_ALLOC or section.flags & (c.SHF_WRITE | c.SHF_EXECINSTR):
        return False
    start, end = section.file_span
    touching = [
        segment.file_span for segment in following if segment.file_offset < end and start < segment.file_span.end
    ]
    if any(span.start > start or span.end < end for span in touching):
        return False
    if section.name == ".interp":
        return len(touching) == 1
    if section.type == c.SHT_NOTE:
        return section.name in NAMED_NOTES or (bool(touching) and _is_note_of_no_place(file, section))
    tag = TAG_OF_NAME.get(section.name)
    return tag is not None and not touching and tags[tag, section.vaddr] == 1 and _is_whole(file, section)


def _is_whole(file: LinkedFile, section: ElfSection) -> bool:
    """Whether only filling follows a table: a damaged section header may tell of less than readers of the table use."""
    end = section.file_span.end
    load_end = max(load.file_span.end for load in file.loads if load.file_offset <= section.file_offset)
    return not bytes(file.data[end : min(file.next_described(end), load_end)]).strip(_FILLING)


def _is_note_of_no_place(file: LinkedFile, section: ElfSection) -> bool:
    """Whether a section is small and has well-formed notes only, none with an address relative to itself."""
    if section.size > _MAX_NOTES_SIZE:
        return False
    content = bytes(file.data[section.file_offset : section.file_span.end])
    image = range(file.loads[0].vaddr, file.loads[-1].end_vaddr)
    return may_be_elsewhere(content, file.order, section.alignment, section.vaddr, image)


def _relocated_addresses(file: LinkedFile, start_vaddr: int, end_vaddr: int) -> set[int]:
    """Return the addresses in a range that relative relocations store, and those at which any relocation stores."""
    found: set[int] = set()
    for index, section in enumerate(file.sections):
        if not section.flags & c.SHF_ALLOC or not section.is_stored or section.type not in (c.SHT_RELA, c.SHT_RELR):
            continue
        if section.type == c.SHT_RELR:
            packed = packed_words(words_of(file.section_bytes(index), file.order, 1))
            found.update(value for value in _stored_at(file, packed) if start_vaddr <= value < end_vaddr)
            continue
        words = words_of(file.section_bytes(index), file.order, 3)
        found.update(place for place in words[0::3] if start_vaddr <= place < end_vaddr)
        for number, addend in enumerate(words[2::3]):
            if start_vaddr <= addend < end_vaddr and words[3 * number + 1] & 0xFFFFFFFF in _RELATIVE_TYPES:
                found.add(addend)
    return found


def _stored_at(file: LinkedFile, packed: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield what the file has in the words that compact relocations name: the addends."""
    loads = [load for load in file.loads if load.flags & c.PF_W]
    words = [
        words_of(file.data[load.file_offset + -load.vaddr % 8 : load.file_span.end], file.order, 1) for load in loads
    ]
    for start, bitmap in packed:
        for load, stored in zip(loads, words, strict=True):
            first = (start - load.vaddr) // 8
            # The last word that the bitmap can name is the 63rd.
            for number in range(max(first, 0), min(first + bitmap.bit_length(), len(stored))):
                if bitmap >> (number - first) & 1:
                    yield stored[number]
