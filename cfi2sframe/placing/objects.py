# SPDX-License-Identifier: Apache-2.0
"""The door for relocatable objects: add a section and its relocations to a copy of one, or remove them.

All other sections keep their bytes, file offsets and indices: new contents, a record for removal and the new section
table are appended, and the file header is updated. Knows nothing of what the section's bytes mean.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import Joined, have_same, is_equal, part_of
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    RELA_SIZE,
    SFRAME_NAME,
    SYMBOL_SIZE,
    ElfSection,
)
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.undo import Undo, undo_of
from cfi2sframe.printable import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.elf.image import ElfImage

_RELA_NAME: Final = b".rela.sframe\0"
_MODULE_SIGNATURE: Final = b"~Module signature appended~\n"
#: The header of an inactive section.
_INACTIVE: Final = ElfSection(0, c.SHT_NULL, 0, 0, 0, 0, 0, 0, 0, 0)


class ObjectRelocation(NamedTuple):
    """An entry of `.rela.sframe`; `offset` counts bytes from the start of the section."""

    offset: int
    type: int
    symbol_index: int
    addend: int


def add_to_object(
    data: FileData, section: bytes, relocations: Sequence[ObjectRelocation], section_type: int = c.SHT_GNU_SFRAME
) -> Joined:
    """Return a copy of an object with `.sframe` and `.rela.sframe`: buffers to be written one after the other.

    An SFrame section that was added is taken out first; that of an assembler is replaced, and it and its relocations
    keep their indices. Raises `EmbedError` when the object does not have exactly one symbol table, or cannot be changed
    without risk.
    """
    old = _read(data)
    if (original := _original(old)) is not None:
        old = _read(original)
    tables = [section.index for section in old.sections if section.type == c.SHT_SYMTAB]
    if len(tables) != 1:
        raise EmbedError(f"{len(tables)} symbol tables; relocations need exactly one")
    headers = list(old.headers.sections)
    tail = _FileTail(len(old.data))
    name_offset, rela_name_offset = _add_names(old, headers, tail)
    found = _indices(old)
    if len(found) < 2 and (last := max(_symbol_sections(old), default=0)) >= len(headers):
        raise EmbedError(f"a symbol is in section {last}, which does not exist; the new section could get that index")
    new = range(len(headers), len(headers) + 2 - len(found))
    index, rela_index = (*found, *new)
    headers += [_INACTIVE for _ in new]
    headers[index] = _INACTIVE._replace(
        name_offset=name_offset,
        type=section_type,
        flags=c.SHF_ALLOC,
        file_offset=tail.add(section, 8),
        size=len(section),
        alignment=8,
    )
    packed = b"".join(
        struct.pack(old.byte_order + "QQq", offset, symbol << 32 | kind, addend)
        for offset, kind, symbol, addend in relocations
    )
    headers[rela_index] = ElfSection(
        name_offset=rela_name_offset,
        type=c.SHT_RELA,
        flags=c.SHF_INFO_LINK,
        vaddr=0,
        file_offset=tail.add(packed, 8),
        size=len(packed),
        link=tables[0],
        info=index,
        alignment=8,
        entry_size=RELA_SIZE,
    )
    if not found:
        # It ends where the section table starts.
        size = len(old.data)
        undo = Undo(old.header.pack(), b"", (), {}, False, size, size, 0, 0, 0)
        tail.add(undo.pack(), 8)
    return _finish(old, headers, tail)


def remove_from_object(data: FileData) -> Joined:
    """Return a copy of an object without `.sframe` and `.rela.sframe`.

    That is the original, if the section was added and nothing else has written the file since. Otherwise their headers
    are removed when they are the last ones, and made inactive (SHT_NULL) when they are not: other sections keep their
    indices. Raises `EmbedError` when there is no `.sframe`, or a symbol or a group refers to it.
    """
    old = _read(data)
    if (original := _original(old)) is not None:
        return original
    if not (found := _indices(old)):
        raise EmbedError("no .sframe section")
    if not all(map(set(found).isdisjoint, _index_lists(old, c.SHT_GROUP))):
        raise EmbedError("a section group holds .sframe; the section cannot be removed")
    if found[0] in _symbol_sections(old):
        raise EmbedError("a symbol is in .sframe; the section cannot be removed")
    headers = list(old.headers.sections)
    for index in found:
        headers[index] = _INACTIVE
    while headers[-1].type == c.SHT_NULL and len(headers) > 1:
        headers.pop()
    return _finish(old, headers, _FileTail(len(data)))


def _read(data: FileData) -> ElfImage:
    """Parse an object. Raises `EmbedError` for one that must not be changed."""
    from cfi2sframe.elf.image import ElfImage

    image = ElfImage(data, "object")
    if not image.sections:
        raise EmbedError("an object without section headers has no place for a section")
    if bytes(data[-len(_MODULE_SIGNATURE) :]) == _MODULE_SIGNATURE:
        raise EmbedError("a signed kernel module: any change breaks its signature; convert before signing")
    return image


def _indices(image: ElfImage) -> list[int]:
    """Return the indices of `.sframe` and of the section that relocates it; empty, or shorter, without one."""
    section = image.sframe_section
    if section is None:
        return []
    relocating = (s.index for s in image.sections if s.type in (c.SHT_RELA, c.SHT_REL) and s.info == section.index)
    return [section.index, *islice(relocating, 1)]


def _symbol_sections(image: ElfImage) -> set[int]:
    """Return the indices of the sections in which symbols are."""
    found = set[int]()
    for table in image.sections:
        if table.type == c.SHT_SYMTAB:
            symbols = image.section_bytes(table)
            usable = symbols[: len(symbols) // SYMBOL_SIZE * SYMBOL_SIZE]
            found.update(n for (n,) in struct.iter_unpack(image.byte_order + "6xH16x", usable) if n < c.SHN_LORESERVE)
    return found.union(*_index_lists(image, c.SHT_SYMTAB_SHNDX))


def _index_lists(image: ElfImage, kind: int) -> Iterator[tuple[int, ...]]:
    """Yield the words of each list of section indices. Raises `EmbedError` where all are larger than the file."""
    lists = [section for section in image.sections if section.type == kind]
    if sum(section.size for section in lists) > len(image.data):
        raise EmbedError("the lists of section indices overlap one another")
    for section in lists:
        data = image.section_bytes(section)
        yield struct.unpack_from(f"{image.byte_order}{len(data) // 4}I", data)


def _original(old: ElfImage) -> Joined | None:
    """Return the original of an object to which a section was added, if adding it again gives the object; else None."""
    undo, found = undo_of(old.data, old.header.section_headers_offset), _indices(old)
    if undo is None or len(found) < 2 or not FILE_HEADER_SIZE <= undo.file_size <= len(old.data):
        return None
    section, rela = (old.sections[index] for index in found)
    original = Joined([undo.header, part_of(old.data, FILE_HEADER_SIZE, undo.file_size)])
    try:
        if _indices(_read(original)):
            return None
        fields = struct.iter_unpack(old.byte_order + "QQq", old.section_bytes(rela))
        relocations = [ObjectRelocation(at, info & 0xFFFFFFFF, info >> 32, addend) for at, info, addend in fields]
        again = add_to_object(original, old.section_bytes(section), relocations, section.type)
    except (EmbedError, ElfError, struct.error):
        return None
    return original if is_equal(again, old.data) else None


class _FileTail:
    """The bytes that are appended after the old end of the file."""

    def __init__(self, start: int) -> None:
        self.offset = start
        self.chunks: list[Buffer] = []

    def add(self, chunk: bytes, alignment: int) -> int:
        """Append aligned bytes; return their file offset."""
        padding = -self.offset % alignment
        self.chunks += [bytes(padding), chunk]
        offset = self.offset + padding
        self.offset = offset + len(chunk)
        return offset


def _add_names(old: ElfImage, headers: list[ElfSection], tail: _FileTail) -> tuple[int, int]:
    """Return the offsets of `.sframe` and `.rela.sframe` in the name table, after adding them if they are missing.

    `.sframe` is the end of the other name.
    """
    index = old.headers.names_index
    names = old.section_bytes(old.sections[index])
    position = names.find(_RELA_NAME)
    if position < 0:
        position = len(names)
        names += _RELA_NAME
        headers[index] = headers[index]._replace(file_offset=tail.add(names, 1), size=len(names))
    return position + len(_RELA_NAME) - len(SFRAME_NAME) - 1, position


def _finish(old: ElfImage, headers: list[ElfSection], tail: _FileTail) -> Joined:
    """Return the new file: the old one with a new file header, then the tail and the section table."""
    offset, count = tail.offset + -tail.offset % 8, len(headers)
    # The null section has the count of sections where it is large.
    is_large = count >= c.SHN_LORESERVE
    if is_large or old.header.section_header_count == 0:
        headers[0] = headers[0]._replace(size=count if is_large else 0)
    count = 0 if is_large else count
    packed = old.header._replace(section_headers_offset=offset, section_header_count=count).pack()
    tail.add(b"".join(h.pack(old.byte_order) for h in headers), 8)
    return Joined([packed, part_of(old.data, len(packed), len(old.data)), *tail.chunks])


def check_object_with(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` with `.sframe`, and all other sections are unchanged."""
    if (bare := _original(original)) is not None:
        without = _read(bare)
        check_object_without(original, without)
        original = without
    _check_kept(original, rewritten, set(_indices(original)))
    found = {s.index for s in rewritten.sections if s.is_sframe}
    _expect(len(found) == 1, f"there are {len(found)} SFrame sections")
    added = [s for s in rewritten.sections[len(original.sections) :] if s.index not in found]
    _expect(all(s.type == c.SHT_RELA and s.info in found for s in added), "there are other new sections")


def check_object_without(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without `.sframe`, and all other sections are unchanged."""
    if len(rewritten.data) < len(original.data):
        _expect(not any(section.is_sframe for section in rewritten.sections), "the section is still there")
        check_object_with(rewritten, original)
        return
    removed = set(_indices(original))
    _check_kept(original, rewritten, removed)
    for section in rewritten.sections:
        header = rewritten.headers.sections[section.index]
        is_as_expected = section.index not in removed or header._replace(name_offset=0) == _INACTIVE
        _expect(is_as_expected and not section.is_sframe, "the section is still there")


def _check_kept(original: ElfImage, rewritten: ElfImage, other: set[int]) -> None:
    """Raise `EmbedError` unless all sections except those with the indices `other` are unchanged.

    Inactive ones at the end may be missing. Sections may overlap, so the whole file is compared at once.
    """
    same = have_same(original.data, rewritten.data, Span(FILE_HEADER_SIZE, len(original.data)))
    _expect(same, "the bytes of the old file changed")
    before, after = original.header, rewritten.header
    # Where the section table is, and how many headers it has, may change.
    table: dict[str, Any] = {"section_headers_offset": 0, "section_header_count": 0}
    _expect(before._replace(**table) == after._replace(**table), "the file header changed")
    index = original.headers.names_index
    _expect(index == rewritten.headers.names_index, "the section names are elsewhere")
    names, new_names = (i.section_bytes(i.sections[index]) for i in (original, rewritten))
    _expect(names == new_names[: len(names)], "the section names changed")
    # The image assigns addresses, but not to these headers.
    headers = rewritten.headers.sections
    for old in original.headers.sections:
        if old.index in other or (old.index >= len(headers) and old.type == c.SHT_NULL):
            continue
        _expect(old.index < len(headers), f"section {shown_name(old.name)} is missing")
        # Names may be long; an offset is a name.
        free: dict[str, Any] = {"name": ""}
        if old.index == 0:
            # The null section may have the count of sections.
            free["size"] = 0
        elif old.index == index:
            free |= {"file_offset": 0, "size": 0}
        same = old._replace(**free) == headers[old.index]._replace(**free)
        is_same_name = not len(names) <= old.name_offset < len(new_names)
        _expect(same and is_same_name, f"section {shown_name(old.name) or old.index} differs")


def _expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise EmbedError(f"the rewritten object fails its re-read: {message}")
