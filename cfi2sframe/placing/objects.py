# SPDX-License-Identifier: Apache-2.0
"""The door for relocatable objects: add a section and its relocations to a copy of one, or remove them.

All other sections keep their bytes, file offsets and indices: new contents, a record for removal and the new section
table are appended, and the file header is updated. Knows nothing of what the section's bytes mean.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.contents import Joined, differences, is_equal, part_of
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    RELA_SIZE,
    SFRAME_NAME,
    SYMBOL_SIZE,
    FileHeader,
    SectionHeader,
    parse_headers,
    sframe_index,
)
from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.strings import shared_names, shown_name
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.undo import Undo, undo_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.elf.image import ElfImage

_RELA_NAME: Final = ".rela.sframe"
_MODULE_SIGNATURE: Final = b"~Module signature appended~\n"
#: The header of an inactive section.
_INACTIVE: Final = SectionHeader(0, c.SHT_NULL, 0, 0, 0, 0, 0, 0, 0, 0)


class ObjectRelocation(NamedTuple):
    """An entry of `.rela.sframe`; `offset` counts bytes from the start of the section."""

    offset: int
    type: int
    symbol_index: int
    addend: int


class _Object:
    """An object's headers and tables, as far as adding and removing sections needs them."""

    def __init__(self, data: FileData) -> None:
        self.data = data
        headers = parse_headers(data)
        self.header = headers.file
        self.order = self.header.byte_order
        self.sections = headers.sections
        if not self.sections:
            raise EmbedError("an object without section headers has no place for a section")
        if bytes(data[-len(_MODULE_SIGNATURE) :]) == _MODULE_SIGNATURE:
            raise EmbedError("a signed kernel module: any change breaks its signature; convert before signing")
        self.names_index = headers.names_index
        names = self.sections[self.names_index]
        self.names = bytes(data[names.file_offset : names.file_span.end])
        self._index_bytes_left = len(data)

    def find(self) -> int | None:
        """Return the index of the SFrame section, if there is one."""
        wanted = SFRAME_NAME.encode() + b"\0"
        # Names may be long and may overlap, so none is copied.
        return sframe_index(
            (section.type, SFRAME_NAME if self.names.startswith(wanted, section.name_offset) else "")
            for section in self.sections
        )

    def find_relocations(self, target: int) -> int | None:
        """Return the index of the section that relocates section `target`; None without one."""
        for index, section in enumerate(self.sections):
            if section.type in (c.SHT_RELA, c.SHT_REL) and section.info == target:
                return index
        return None

    def symbol_table(self) -> int:
        """Return the index of the symbol table. Raises `EmbedError` unless there is exactly one."""
        tables = [index for index, section in enumerate(self.sections) if section.type == c.SHT_SYMTAB]
        if len(tables) != 1:
            raise EmbedError(f"{len(tables)} symbol tables; relocations need exactly one")
        return tables[0]

    def symbol_sections(self, symbol_table: int) -> set[int]:
        """Return the indices of the sections in which the symbols of a table are."""
        symbols = self.bytes_of(self.sections[symbol_table], SYMBOL_SIZE)
        stored = {index for (index,) in struct.iter_unpack(self.order + "6xH16x", symbols)}
        indices = {index for index in stored if index < c.SHN_LORESERVE}
        if c.SHN_XINDEX in stored:
            for section in self.sections:
                if section.type == c.SHT_SYMTAB_SHNDX and section.link == symbol_table:
                    indices.update(self.words_of(section))
        return indices

    def words_of(self, section: SectionHeader) -> tuple[int, ...]:
        """Return the words of a list of section indices.

        Raises `EmbedError` when it leaves the file, or when all lists together are larger than the file.
        """
        data = self.bytes_of(section, 4)
        self._index_bytes_left -= len(data)
        if self._index_bytes_left < 0:
            raise EmbedError("the lists of section indices overlap one another")
        return struct.unpack(f"{self.order}{len(data) // 4}I", data)

    def bytes_of(self, section: SectionHeader, entry_size: int) -> Buffer:
        """Return the bytes of a table, whole entries only. Raises `EmbedError` when it leaves the file."""
        if section.file_span.end > len(self.data):
            raise EmbedError("a table of symbols or indices reaches past the end of the file")
        return self.data[section.file_offset : section.file_offset + section.size // entry_size * entry_size]

    def file_header(self, headers_offset: int, count: int) -> tuple[FileHeader, SectionHeader]:
        """Return the new file header and null section, which has the count of sections where it is large."""
        null = self.sections[0]
        stored = count
        if count >= c.SHN_LORESERVE:
            stored, null = 0, null._replace(size=count)
        elif self.header.section_header_count == 0:
            null = null._replace(size=0)
        header = self.header._replace(section_headers_offset=headers_offset, section_header_count=stored)
        return header, null


def add_to_object(
    data: FileData, section: bytes, relocations: Sequence[ObjectRelocation], section_type: int = c.SHT_GNU_SFRAME
) -> Joined:
    """Return a copy of an object with `.sframe` and `.rela.sframe`: buffers to be written one after the other.

    An SFrame section that was added is taken out first; that of an assembler is replaced, and it and its relocations
    keep their indices. Raises `EmbedError` when the object does not have exactly one symbol table, or cannot be changed
    without risk.
    """
    old = _Object(data)
    if (original := _original(old)) is not None:
        old = _Object(original)
    headers = list(old.sections)
    tail = _FileTail(len(old.data))
    name_offset, rela_name_offset = _add_names(old, headers, tail)
    symbol_table = old.symbol_table()
    index = old.find()
    has_section = index is not None
    rela_index = None if index is None else old.find_relocations(index)
    if index is None or rela_index is None:
        last = max(old.symbol_sections(symbol_table), default=0)
        if last >= len(headers):
            raise EmbedError(
                f"a symbol is in section {last}, which does not exist; the new section could get that index"
            )
    if index is None:
        index = len(headers)
        headers.append(old.sections[0])
    if rela_index is None:
        rela_index = len(headers)
        headers.append(old.sections[0])
    headers[index] = _INACTIVE._replace(
        name_offset=name_offset,
        type=section_type,
        flags=c.SHF_ALLOC,
        file_offset=tail.add(section, 8),
        size=len(section),
        alignment=8,
    )
    packed = b"".join(
        struct.pack(old.order + "QQq", offset, symbol << 32 | kind, addend)
        for offset, kind, symbol, addend in relocations
    )
    headers[rela_index] = SectionHeader(
        name_offset=rela_name_offset,
        type=c.SHT_RELA,
        flags=c.SHF_INFO_LINK,
        vaddr=0,
        file_offset=tail.add(packed, 8),
        size=len(packed),
        link=symbol_table,
        info=index,
        alignment=8,
        entry_size=RELA_SIZE,
    )
    if not has_section:
        # It ends where the section table starts.
        size = len(old.data)
        undo = Undo(old.header.pack(), b"", (), (), False, size, size, 0, 0, 0)
        tail.add(undo.pack(), 8)
    return _finish(old, headers, tail)


def remove_from_object(data: FileData) -> Joined:
    """Return a copy of an object without `.sframe` and `.rela.sframe`.

    That is the original, if the section was added and nothing else has written the file since. Otherwise their headers
    are removed when they are the last ones, and made inactive (SHT_NULL) when they are not: other sections keep their
    indices. Raises `EmbedError` when there is no `.sframe`, or a symbol or a group refers to it.
    """
    old = _Object(data)
    if (original := _original(old)) is not None:
        return original
    index = old.find()
    if index is None:
        raise EmbedError("no .sframe section")
    headers = list(old.sections)
    rela_index = old.find_relocations(index)
    _check_unreferenced(old, index, rela_index)
    for removed in (index, rela_index):
        if removed is not None:
            headers[removed] = _INACTIVE
    while headers[-1].type == c.SHT_NULL and len(headers) > 1:
        headers.pop()
    return _finish(old, headers, _FileTail(len(data)))


def _original(old: _Object) -> Joined | None:
    """Return the original of an object to which a section was added, if adding it again gives the object; else None."""
    undo, index = undo_of(old.data, old.header.section_headers_offset), old.find()
    rela_index = None if index is None else old.find_relocations(index)
    if undo is None or index is None or rela_index is None or not FILE_HEADER_SIZE <= undo.file_size <= len(old.data):
        return None
    section, rela = (old.sections[number] for number in (index, rela_index))
    original = Joined([undo.header, part_of(old.data, FILE_HEADER_SIZE, undo.file_size)])
    try:
        if _Object(original).find() is not None:
            return None
        fields = struct.iter_unpack(old.order + "QQq", old.bytes_of(rela, RELA_SIZE))
        relocations = [ObjectRelocation(at, info & 0xFFFFFFFF, info >> 32, addend) for at, info, addend in fields]
        again = add_to_object(original, bytes(old.bytes_of(section, 1)), relocations, section.type)
    except (EmbedError, ElfError):
        return None
    return original if is_equal(again, old.data) else None


def _check_unreferenced(old: _Object, index: int, rela_index: int | None) -> None:
    for section in old.sections:
        if section.type == c.SHT_GROUP:
            members = old.words_of(section)
            if index in members or rela_index in members:
                raise EmbedError("a section group holds .sframe; the section cannot be removed")
    if index in old.symbol_sections(old.symbol_table()):
        raise EmbedError("a symbol is in .sframe; the section cannot be removed")


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


def _add_names(old: _Object, headers: list[SectionHeader], tail: _FileTail) -> tuple[int, int]:
    """Return the offsets of `.sframe` and `.rela.sframe` in the name table, after adding them if they are missing.

    `.sframe` is the end of the other name.
    """
    position = old.names.find(_RELA_NAME.encode() + b"\0")
    if position < 0:
        position = len(old.names)
        names = old.names + _RELA_NAME.encode() + b"\0"
        section = headers[old.names_index]
        headers[old.names_index] = section._replace(file_offset=tail.add(names, 1), size=len(names))
    return position + len(_RELA_NAME) - len(SFRAME_NAME), position


def _finish(old: _Object, headers: list[SectionHeader], tail: _FileTail) -> Joined:
    """Return the new file: the old one with a new file header, then the tail and the section table."""
    offset = tail.offset + -tail.offset % 8
    header, headers[0] = old.file_header(offset, len(headers))
    tail.add(b"".join(h.pack(old.order) for h in headers), 8)
    packed = header.pack()
    return Joined([packed, part_of(old.data, len(packed), len(old.data)), *tail.chunks])


def check_object_with(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` with `.sframe`, and all other sections are unchanged."""
    bare = _original(_Object(original.data))
    if bare is not None:
        from cfi2sframe.elf.image import ElfImage

        without = ElfImage(bare, original.name)
        check_object_without(original, without)
        original = without
    known = {s.index for s in original.sections if s.is_sframe}
    replaced = known | {s.index for s in original.sections if s.type in (c.SHT_RELA, c.SHT_REL) and s.info in known}
    _check_kept(original, rewritten, replaced)
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
    removed = {s.index for s in original.sections if s.is_sframe}
    removed |= {s.index for s in original.sections if s.type in (c.SHT_RELA, c.SHT_REL) and s.info in removed}
    _check_kept(original, rewritten, removed)
    for section in rewritten.sections:
        header = rewritten.headers.sections[section.index]
        is_as_expected = section.index not in removed or header._replace(name_offset=0) == _INACTIVE
        _expect(is_as_expected and not section.is_sframe, "the section is still there")


def _check_kept(original: ElfImage, rewritten: ElfImage, other: set[int]) -> None:
    """Raise `EmbedError` unless all sections except those with the indices `other` are unchanged.

    Inactive ones at the end may be missing.
    """
    before, after = original.header, rewritten.header
    # Sections may overlap, so the whole file is compared at once: new bytes are only after its old end.
    for place, _ in differences(original.data, rewritten.data, Span(FILE_HEADER_SIZE, len(original.data))):
        holders = [s.name for s in original.sections if s.file_offset <= place < s.file_offset + s.size]
        raise _failure(f"section {shown_name((*holders, 'none')[0])} differs at file offset 0x{place:x}")
    # Where the section table is, and how many headers it has, may change.
    same = before == after._replace(
        section_headers_offset=before.section_headers_offset,
        section_header_count=before.section_header_count,
    )
    _expect(same, "the file header changed")
    _expect(original.segments == rewritten.segments, "the program headers changed")
    names = original.headers.names_index
    new_names = shared_names((s.name for s in rewritten.sections), (s.name for s in original.sections))
    _expect(names == rewritten.headers.names_index, "the section names are elsewhere")
    for old in original.sections:
        if old.index in other:
            continue
        if old.index >= len(rewritten.sections):
            _expect(old.type == c.SHT_NULL, f"section {shown_name(old.name)} is missing")
            continue
        new = rewritten.sections[old.index]
        # The image assigns addresses, and the null section may have the count of sections.
        first, second = old._replace(vaddr=0), new._replace(vaddr=0, name=new_names[old.index])
        if old.index == names:
            same = original.section_bytes(old) == rewritten.section_bytes(new)[: old.size]
            _expect(same, "the section names changed")
            first, second = (s._replace(file_offset=0, size=0) for s in (first, second))
        elif old.index == 0:
            first, second = first._replace(size=0), second._replace(size=0)
        _expect(first == second, f"section {shown_name(old.name) or old.index} differs")


def _expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise _failure(message)


def _failure(message: str) -> EmbedError:
    return EmbedError(f"the rewritten object fails its re-read: {message}")
