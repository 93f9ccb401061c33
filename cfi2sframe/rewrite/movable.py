# SPDX-License-Identifier: Apache-2.0
"""Which small sections between the program headers and the rest of the file may live elsewhere.

Nothing but a header entry or a dynamic tag leads to them: the interpreter's name (PT_INTERP), notes
(PT_NOTE, PT_GNU_PROPERTY), and the tables of the dynamic linker that a DT_ entry points to. A section that
a symbol visible to the linker or a relative relocation names stays where it is, since some code may hold
its address.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import (
    DT_GNU_HASH,
    DT_HASH,
    DT_NULL,
    DT_STRTAB,
    DT_SYMTAB,
    DT_VERDEF,
    DT_VERNEED,
    DT_VERSYM,
    PT_GNU_RELRO,
    PT_LOAD,
    PT_PHDR,
    R_390_RELATIVE,
    R_AARCH64_RELATIVE,
    R_X86_64_RELATIVE,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHT_DYNAMIC,
    SHT_DYNSYM,
    SHT_NOTE,
    SHT_RELA,
    SHT_SYMTAB,
    STB_LOCAL,
)
from cfi2sframe.elf.records import DYNAMIC_ENTRY_SIZE, SYMBOL_SIZE
from cfi2sframe.rewrite.cover import FOLLOWING_TYPES, Cover
from cfi2sframe.rewrite.notes import ask_for_nothing
from cfi2sframe.rewrite.reread.view import file_range, touches, united

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.records import ProgramHeader, SectionHeader
    from cfi2sframe.rewrite.gate import Layout

NOTE_NAMES: Final = frozenset(
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
#: The dynamic tag through which alone a section is found.
TAG_OF_NAME: Final = {
    ".gnu.hash": DT_GNU_HASH,
    ".hash": DT_HASH,
    ".dynsym": DT_SYMTAB,
    ".dynstr": DT_STRTAB,
    ".gnu.version": DT_VERSYM,
    ".gnu.version_d": DT_VERDEF,
    ".gnu.version_r": DT_VERNEED,
}
_ENCLOSING_TYPES: Final = frozenset({PT_LOAD, PT_PHDR, PT_GNU_RELRO})
_RELATIVE_TYPES: Final = frozenset({R_X86_64_RELATIVE, R_AARCH64_RELATIVE, R_390_RELATIVE})


class DynamicEntry(NamedTuple):
    """One Elf64_Dyn and the file offset of its value."""

    tag: int
    value: int
    value_file_offset: int


class Symbol(NamedTuple):
    """What matters of a symbol: its section, binding, value and the file offset of the value."""

    section_index: int
    binding: int
    value: int
    value_file_offset: int


def dynamic_entries(layout: Layout) -> tuple[DynamicEntry, ...]:
    """Return the entries of `.dynamic` up to DT_NULL; none for a static executable."""
    for index, section in enumerate(layout.sections):
        if section.type == SHT_DYNAMIC and layout.has_content(index):
            return tuple(_read_dynamic(layout, section.file_offset, section.size))
    return ()


def _read_dynamic(layout: Layout, start: int, size: int) -> Iterator[DynamicEntry]:
    data = layout.data[start : start + size - size % DYNAMIC_ENTRY_SIZE]
    for number, (tag, value) in enumerate(struct.iter_unpack(layout.order + "QQ", data)):
        if tag == DT_NULL:
            return
        yield DynamicEntry(tag, value, start + DYNAMIC_ENTRY_SIZE * number + 8)


def symbols_in(layout: Layout, wanted: frozenset[int]) -> Iterator[Symbol]:
    """Yield the symbols of every symbol table that are defined in one of the sections `wanted`."""
    for index, section in enumerate(layout.sections):
        if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or not layout.has_content(index):
            continue
        size = section.size - section.size % SYMBOL_SIZE
        symbols = bytes(layout.data[section.file_offset : section.file_offset + size])
        halves = array("H", symbols)
        if layout.order != ("<" if struct.pack("=H", 1) == struct.pack("<H", 1) else ">"):
            halves.byteswap()
        # st_shndx is the fourth of the twelve 16-bit halves of a symbol.
        for number, section_index in enumerate(halves[3::12]):
            if section_index in wanted:
                offset = number * SYMBOL_SIZE
                value = struct.unpack_from(layout.order + "Q", symbols, offset + 8)[0]
                yield Symbol(section_index, symbols[offset + 4] >> 4, value, section.file_offset + offset + 8)


def _relative_targets(layout: Layout, start_vaddr: int, end_vaddr: int) -> set[int]:
    """Return the addresses in the range that the dynamic linker is asked to store somewhere."""
    found = set()
    for index, section in enumerate(layout.sections):
        if section.type != SHT_RELA or not section.flags & SHF_ALLOC or not layout.has_content(index):
            continue
        size = section.size - section.size % 24
        words = array("Q", bytes(layout.data[section.file_offset : section.file_offset + size]))
        if layout.order != ("<" if struct.pack("=H", 1) == struct.pack("<H", 1) else ">"):
            words.byteswap()
        for number, addend in enumerate(words[2::3]):
            if start_vaddr <= addend < end_vaddr and words[3 * number + 1] & 0xFFFFFFFF in _RELATIVE_TYPES:
                found.add(addend)
    return found


def movable_sections(layout: Layout, start: int, end: int) -> frozenset[int]:
    """Return the indices of the sections within the file range that may move to another address."""
    tags = Counter((entry.tag, entry.value) for entry in dynamic_entries(layout))
    cover = Cover(layout)
    others = united(
        (segment.file_offset, segment.file_offset + segment.file_size)
        for segment in layout.segments
        if segment.type not in FOLLOWING_TYPES and segment.type not in _ENCLOSING_TYPES
    )
    found = {
        index
        for index in layout.indices_within(start, end)
        if not touches(others, file_range(layout.sections[index])) and _is_movable(layout, index, tags, cover)
    }
    if not found:
        return frozenset()
    for symbol in symbols_in(layout, frozenset(found)):
        if symbol.binding != STB_LOCAL:
            found.discard(symbol.section_index)
    low = min((layout.sections[index].vaddr for index in found), default=0)
    high = max((layout.sections[index].vaddr + layout.sections[index].size for index in found), default=0)
    targets = sorted(_relative_targets(layout, low, high))
    return frozenset(index for index in found if not _is_target(layout.sections[index], targets))


def _is_target(section: SectionHeader, targets: list[int]) -> bool:
    """Say whether one of ascending addresses lies in a section."""
    first = bisect_left(targets, section.vaddr)
    return first < len(targets) and targets[first] < section.vaddr + section.size


def _is_movable(layout: Layout, index: int, tags: Counter[tuple[int, int]], cover: Cover) -> bool:
    section, name = layout.sections[index], layout.names[index]
    if not section.flags & SHF_ALLOC or section.flags & (SHF_WRITE | SHF_EXECINSTR):
        return False
    followers = cover.touching_count(*file_range(section))
    if followers != len(cover.segments.get(index, ())):
        return False
    if name == ".interp":
        return followers == 1
    if section.type == SHT_NOTE:
        return name in NOTE_NAMES
    tag = TAG_OF_NAME.get(name)
    return tag is not None and followers == 0 and tags[tag, section.vaddr] == 1


def nobody_misses(layout: Layout, note: ProgramHeader) -> bool:
    """Say whether a PT_NOTE, beside a PT_GNU_PROPERTY for the same notes, may go and come back.

    Loaders find the same with and without it: it is mapped, well-formed, and asks for nothing.
    """
    is_mapped = note.file_size == note.memory_size and any(
        load.vaddr <= note.vaddr
        and note.vaddr + note.file_size <= load.vaddr + load.file_size
        and note.vaddr - load.vaddr == note.file_offset - load.file_offset
        for load in layout.loads
    )
    content = bytes(layout.data[note.file_offset : note.file_offset + note.file_size])
    return is_mapped and ask_for_nothing(content, layout.order, note.alignment)
