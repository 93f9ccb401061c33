# SPDX-License-Identifier: Apache-2.0
"""The section table of a file without a section against that of the same file with one."""

from __future__ import annotations

from array import array
from collections import Counter
from sys import byteorder
from typing import TYPE_CHECKING, Literal

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.records import SFRAME_NAME, SYMBOL_SIZE
from cfi2sframe.elf.strings import shared_names, shown_name
from cfi2sframe.rewrite.reread.mapped import Moved
from cfi2sframe.rewrite.reread.view import expect, failure, file_range, first_difference

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from cfi2sframe.elf.records import SectionHeader
    from cfi2sframe.rewrite.reread.view import View

_SYMBOL_TABLES = frozenset({c.SHT_SYMTAB, c.SHT_DYNSYM})
#: Sections that hold section indices which nothing here follows.
_INDEX_LISTS = frozenset({c.SHT_SYMTAB_SHNDX, c.SHT_GROUP})

#: How often a name occurs in two files together that is unique in both.
_ONE_EACH = 2


def check_sections(bare: View, full: View, section: int | None, *, is_removal: bool) -> list[Moved]:
    """Raise `EmbedError` unless two files have the same sections, but for number `section` of the full one.

    Sections keep name, kind, size, links and bytes; an address only unless they have moved. Return those that have.
    `is_removal` says which file was made of the other one.
    """
    full = full._replace(names=shared_names(full.names, bare.names))
    numbering = _paired(bare, full, section)
    count = len(numbering) + (section is not None)
    expect(len(full.sections) == count, f"{len(full.sections)} sections instead of {count}")
    expect(_renumbered(bare.names_index, numbering) == full.names_index, "the section names are elsewhere")
    moved = []
    for index, old in enumerate(bare.sections):
        name, new = shown_name(bare.names[index]), full.sections[numbering[index]]
        _check_header(name, old, new, numbering, section, has_grown=index == bare.names_index)
        if old.flags & c.SHF_ALLOC and (old.vaddr, old.file_offset) != (new.vaddr, new.file_offset):
            expect(bare.is_in_file(index), f"section {name} is at 0x{new.vaddr:x}")
            moved.append(Moved(index, numbering[index], file_range(old), file_range(new)))
        else:
            expect(old.vaddr == new.vaddr, f"section {name} is at 0x{new.vaddr:x}")
    _check_contents(bare, full, numbering, section, moved, is_removal=is_removal)
    return moved


def _paired(bare: View, full: View, section: int | None) -> list[int]:
    """Return for each section of the bare file its index in the full one: by name, where that is unique.

    Of several with one name, those come first that have not moved, then those of the same bytes.
    """
    left = dict.fromkeys(index for index in range(len(full.sections)) if index != section)
    found: dict[int, int] = {}
    counts = Counter(bare.names)
    counts.update(full.names[index] for index in left)
    wanted: Sequence[int] = [index for index, name in enumerate(bare.names) if counts[name] == _ONE_EACH]
    offered: Sequence[int] = [index for index in left if counts[full.names[index]] == _ONE_EACH]
    for key in (_name, _same_place, _same_bytes, _same_kind, _name):
        places: dict[Hashable, list[int]] = {}
        for index in reversed(offered):
            places.setdefault(key(full, index), []).append(index)
        for index in wanted:
            if candidates := places.get(key(bare, index)):
                found[index] = candidates.pop()
                del left[found[index]]
        offered = list(left)
        wanted = [index for index in range(len(bare.sections)) if index not in found]
    for index in wanted:
        raise failure(f"section {shown_name(bare.names[index])} is gone")
    return [found[index] for index in range(len(bare.sections))]


def _name(view: View, index: int) -> Hashable:
    return view.names[index]


def _same_kind(view: View, index: int) -> Hashable:
    section = view.sections[index]
    return view.names[index], section.type, section.flags, section.size, section.alignment, section.entry_size


def _same_bytes(view: View, index: int) -> Hashable:
    content = view.bytes_of(file_range(view.sections[index])) if view.is_in_file(index) else b""
    return _same_kind(view, index), hash(content)


def _same_place(view: View, index: int) -> Hashable:
    return _same_bytes(view, index), view.sections[index].vaddr


def _renumbered(index: int, numbering: list[int]) -> int:
    """Return the new index of a section; one that is none, as a damaged null section may hold, stays."""
    return numbering[index] if index < len(numbering) else index


def _check_header(
    name: str, old: SectionHeader, new: SectionHeader, numbering: list[int], section: int | None, *, has_grown: bool
) -> None:
    sizes = (old.size, old.size + len(SFRAME_NAME) + 1) if has_grown else (old.size,)
    expect(new.size in sizes, f"sh_size of section {name} changed")
    expect(old._replace(size=0)[1:3] == new._replace(size=0)[1:3], f"type or flags of section {name} changed")
    expect(old[8:] == new[8:], f"alignment or entry size of section {name} changed")
    links = (_renumbered(old.link, numbering), section if old.link == 0 else None)
    expect(new.link in links, f"section {name} is linked to another")
    is_index = old.flags & c.SHF_INFO_LINK or old.type in (c.SHT_REL, c.SHT_RELA)
    infos = (_renumbered(old.info, numbering), section if old.info == 0 else None) if is_index else (old.info,)
    expect(new.info in infos, f"sh_info of section {name} changed")
    if new.vaddr != old.vaddr:
        expect(new.vaddr % max(new.alignment, 1) == 0, f"section {name} is misaligned")


def _check_contents(
    bare: View, full: View, numbering: list[int], section: int | None, moved: list[Moved], *, is_removal: bool
) -> None:
    """Compare the bytes of sections that are not mapped, that have moved, or that hold section indices."""
    are_renumbered = any(numbering[index] != index for index in range(len(numbering)))
    expect(
        not are_renumbered or not any(s.type in _INDEX_LISTS for s in bare.sections),
        "sections were renumbered, and the file has lists of indices",
    )
    elsewhere = {one.bare_index for one in moved}
    deltas = {
        one.bare_index: full.sections[one.full_index].vaddr - bare.sections[one.bare_index].vaddr for one in moved
    }
    for index, old in enumerate(bare.sections):
        new = full.sections[numbering[index]]
        if not bare.is_in_file(index):
            continue
        if old.type in _SYMBOL_TABLES and old.size % SYMBOL_SIZE == 0 and (are_renumbered or section is not None):
            _check_symbols(bare, full, old, new, _Indices(numbering, section, deltas, is_removal=is_removal))
        elif index in elsewhere or not old.flags & c.SHF_ALLOC:
            start, end = file_range(old)
            same = first_difference(bare.data, full.data, (start, end), new.file_offset) is None
            expect(same, f"the bytes of section {shown_name(bare.names[index])} changed")
    if full.sections:
        old, new = bare.sections[bare.names_index], full.sections[full.names_index]
        added = full.bytes_of((new.file_offset + old.size, new.file_offset + new.size))
        expect(not added or added == SFRAME_NAME.encode() + b"\0", "the section names changed")


class _Indices:
    """How symbols of the bare file name sections of the full one."""

    def __init__(self, numbering: list[int], section: int | None, deltas: dict[int, int], *, is_removal: bool) -> None:
        self.numbering = numbering
        #: A symbol of the section that was taken out has become absolute.
        self.removed = section if is_removal else None
        self.deltas = deltas

    def expected(self, index: int) -> int:
        """Return the index in the full file, for one of the bare file."""
        is_index = index < c.SHN_LORESERVE and index < len(self.numbering)
        return self.numbering[index] if is_index else index


def _check_symbols(bare: View, full: View, old: SectionHeader, new: SectionHeader, indices: _Indices) -> None:
    """Symbols are the same, but for the indices of their sections and the addresses of those that have moved."""
    first, second = bare.bytes_of(file_range(old)), full.bytes_of(file_range(new))
    expect(len(first) == len(second) == old.size, "a symbol table leaves the file")
    order: Literal["little", "big"] = "little" if bare.order == "<" else "big"
    before, after = _halves(first, order), _halves(second, order)
    # st_shndx is the fourth of the twelve 16-bit halves of a symbol.
    sections, found = before[3::12], after[3::12]
    table = {index: indices.expected(index) for index in set(sections)}
    wanted = array("H", [table[index] & 0xFFFF for index in sections])
    if indices.removed is not None and wanted != found:
        for at, index in enumerate(sections):
            if index == c.SHN_ABS and found[at] == indices.removed:
                wanted[at] = found[at]
    expect(wanted == found, "a symbol is in another section")
    before[3::12] = found
    if before == after:
        return
    for at, index in enumerate(sections):
        one, other = before[12 * at : 12 * at + 12], after[12 * at : 12 * at + 12]
        if one == other:
            continue
        start = SYMBOL_SIZE * at + 8
        delta = int.from_bytes(second[start : start + 8], order) - int.from_bytes(first[start : start + 8], order)
        expect(delta == indices.deltas.get(index), f"symbol {at} has another value")
        expect(one[:4] + one[8:] == other[:4] + other[8:], f"symbol {at} is another one")


def _halves(content: bytes, order: str) -> array[int]:
    halves = array("H", content)
    if order != byteorder:
        halves.byteswap()
    return halves
