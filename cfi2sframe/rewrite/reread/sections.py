# SPDX-License-Identifier: Apache-2.0
"""Compare the section tables of a file without an SFrame section (`bare`) and of the same file with one (`full`)."""

from __future__ import annotations

from array import array
from collections import Counter
from sys import byteorder
from typing import TYPE_CHECKING, Literal

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import first_difference
from cfi2sframe.elf.headers import SFRAME_NAME, SYMBOL_SIZE
from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.strings import shared_names, shown_name
from cfi2sframe.rewrite.reread.mapped import Moved
from cfi2sframe.rewrite.reread.view import expect, failure

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from cfi2sframe.elf.headers import SectionHeader
    from cfi2sframe.rewrite.reread.view import FileView

_SYMBOL_TABLES = frozenset({c.SHT_SYMTAB, c.SHT_DYNSYM})
#: Sections of section indices, which rewriting does not renumber.
_INDEX_LISTS = frozenset({c.SHT_SYMTAB_SHNDX, c.SHT_GROUP})

#: How often a name that is unique in both files occurs in the two together.
_ONE_EACH = 2


def check_sections(bare: FileView, full: FileView, section: int | None, *, is_removal: bool) -> list[Moved]:
    """Raise `EmbedError` unless two files have the same sections, except for number `section` of the full one.

    Sections have to keep name, type, size, links and bytes. Returns those whose address or file offset changed.
    `is_removal`: the bare file was made from the full one, and not the full one from the bare one.
    """
    full = full._replace(names=shared_names(full.names, bare.names))
    numbering = _paired(bare, full, section)
    count = len(numbering) + (section is not None)
    expect(len(full.sections) == count, f"{len(full.sections)} sections instead of {count}")
    expect(
        _renumbered(bare.headers.names_index, numbering) == full.headers.names_index, "the section names are elsewhere"
    )
    moved = []
    for index, old in enumerate(bare.sections):
        name, new = shown_name(bare.names[index]), full.sections[numbering[index]]
        _check_header(name, old, new, numbering, section, has_grown=index == bare.headers.names_index)
        if old.flags & c.SHF_ALLOC and (old.vaddr, old.file_offset) != (new.vaddr, new.file_offset):
            expect(old.is_stored, f"section {name} is at 0x{new.vaddr:x}")
            moved.append(Moved(index, numbering[index], old.file_span, new.file_span))
        else:
            expect(old.vaddr == new.vaddr, f"section {name} is at 0x{new.vaddr:x}")
    _check_contents(bare, full, numbering, section, moved, is_removal=is_removal)
    return moved


def _paired(bare: FileView, full: FileView, section: int | None) -> list[int]:
    """Return for each section of the bare file its index in the full one: by name, where that is unique.

    Sections of the same name are paired with one at the same address and of the same bytes, else with one of the same
    bytes, else with one of the same kind, else with any.
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
    if wanted:
        raise failure(f"section {shown_name(bare.names[wanted[0]])} is missing")
    return [found[index] for index in range(len(bare.sections))]


def _name(view: FileView, index: int) -> Hashable:
    return view.names[index]


def _same_kind(view: FileView, index: int) -> Hashable:
    section = view.sections[index]
    return view.names[index], section.type, section.flags, section.size, section.alignment, section.entry_size


def _same_bytes(view: FileView, index: int) -> Hashable:
    content = view.bytes_of(view.sections[index].file_span) if view.sections[index].is_stored else b""
    return _same_kind(view, index), hash(content)


def _same_place(view: FileView, index: int) -> Hashable:
    return _same_bytes(view, index), view.sections[index].vaddr


def _renumbered(index: int, numbering: list[int]) -> int:
    """Return the new index of a section; one past the table, as a damaged null section may have, is kept."""
    return numbering[index] if index < len(numbering) else index


def _check_header(
    name: str, old: SectionHeader, new: SectionHeader, numbering: list[int], section: int | None, *, has_grown: bool
) -> None:
    sizes = (old.size, old.size + len(SFRAME_NAME) + 1) if has_grown else (old.size,)
    expect(new.size in sizes, f"sh_size of section {name} changed")
    expect((old.type, old.flags) == (new.type, new.flags), f"type or flags of section {name} changed")
    same = (old.alignment, old.entry_size) == (new.alignment, new.entry_size)
    expect(same, f"alignment or entry size of section {name} changed")
    links = (_renumbered(old.link, numbering), section if old.link == 0 else None)
    expect(new.link in links, f"sh_link of section {name} changed")
    is_index = old.flags & c.SHF_INFO_LINK or old.type in (c.SHT_REL, c.SHT_RELA)
    infos = (_renumbered(old.info, numbering), section if old.info == 0 else None) if is_index else (old.info,)
    expect(new.info in infos, f"sh_info of section {name} changed")
    if new.vaddr != old.vaddr:
        expect(new.vaddr % max(new.alignment, 1) == 0, f"section {name} is misaligned")


def _check_contents(
    bare: FileView, full: FileView, numbering: list[int], section: int | None, moved: list[Moved], *, is_removal: bool
) -> None:
    """Compare the bytes of sections that are not mapped, that moved, or that are symbol tables."""
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
        if not old.is_stored:
            continue
        if old.type in _SYMBOL_TABLES and old.size % SYMBOL_SIZE == 0 and (are_renumbered or section is not None):
            _check_symbols(bare, full, old, new, _Indices(numbering, section, deltas, is_removal=is_removal))
        elif index in elsewhere or not old.flags & c.SHF_ALLOC:
            same = first_difference(bare.data, full.data, old.file_span, new.file_offset) is None
            expect(same, f"the bytes of section {shown_name(bare.names[index])} changed")
    if full.sections:
        old, new = bare.sections[bare.headers.names_index], full.sections[full.headers.names_index]
        added = full.bytes_of(Span(new.file_offset + old.size, new.file_span.end))
        expect(not added or added == SFRAME_NAME.encode() + b"\0", "the section names changed")


class _Indices:
    """The section indices that symbols of the full file should have."""

    def __init__(self, numbering: list[int], section: int | None, deltas: dict[int, int], *, is_removal: bool) -> None:
        self.numbering = numbering
        #: Symbols of a removed section have become absolute.
        self.removed = section if is_removal else None
        self.deltas = deltas

    def expected(self, index: int) -> int:
        """Return the index in the full file, for one of the bare file."""
        is_index = index < c.SHN_LORESERVE and index < len(self.numbering)
        return self.numbering[index] if is_index else index


def _check_symbols(bare: FileView, full: FileView, old: SectionHeader, new: SectionHeader, indices: _Indices) -> None:
    """Check that symbols differ only in section indices, and in their values where their section moved."""
    first, second = bare.bytes_of(old.file_span), full.bytes_of(new.file_span)
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
        expect(one[:4] + one[8:] == other[:4] + other[8:], f"symbol {at} changed")


def _halves(content: bytes, order: str) -> array[int]:
    halves = array("H", content)
    if order != byteorder:
        halves.byteswap()
    return halves
