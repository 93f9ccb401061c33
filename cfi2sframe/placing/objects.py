# SPDX-License-Identifier: Apache-2.0
"""The door for relocatable objects: add a section and its relocations to a copy of one.

All other sections keep their bytes, file offsets and indices. What is added is appended: contents, a new section table,
and the record for removal. Knows nothing of what the section's bytes mean.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import Joined, is_equal, part_of
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    RELA_SIZE,
    SFRAME_NAME,
    ElfSection,
)
from cfi2sframe.elf.spans import Span
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.object_file import INACTIVE, check_added, expect, read_object, sframe_indices
from cfi2sframe.placing.record import Kept, original_of, with_record
from cfi2sframe.placing.remove_object import proven_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.elf.image import ElfImage

_RELA_NAME: Final = b".rela.sframe\0"


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
    keep their indices. Raises `EmbedError` when the object does not have exactly one symbol table, has several SFrame
    sections, or cannot be changed without risk.
    """
    known = proven_object(read_object(data))
    original = data if known is None else known.content
    old = read_object(original)
    tables = [section.index for section in old.sections if section.type == c.SHT_SYMTAB]
    if len(tables) != 1:
        raise EmbedError(f"{len(tables)} symbol tables; relocations need exactly one")
    headers = list(old.headers.sections)
    tail = _FileTail(len(old.data))
    name_offset, rela_name_offset = _add_names(old, headers, tail)
    found = sframe_indices(old)
    if len(found) > 2:
        raise EmbedError("several SFrame sections, or relocations of one; remove them first")
    if len(found) < 2 and (last := max(_symbol_sections(old), default=0)) >= len(headers):
        raise EmbedError(f"a symbol is in section {last}, which does not exist; the new section could get that index")
    new = range(len(headers), len(headers) + 2 - len(found))
    index, rela_index = (*found, *new)
    headers += [INACTIVE for _ in new]
    headers[index] = INACTIVE._replace(
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
    size = len(original)
    header = [Span(0, FILE_HEADER_SIZE)]
    return with_record(original, _finish(old, headers, tail), [Kept(0, size, 0)], header, ())


def _symbol_sections(image: ElfImage) -> set[int]:
    """Return the indices of the sections in which symbols are."""
    tables = [section for section in image.sections if section.type == c.SHT_SYMTAB]
    return {symbol.section_index for table in tables for symbol in image.symbols(table)} - {
        *range(c.SHN_LORESERVE, 1 << 16)
    }


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
    """Raise `EmbedError` unless `rewritten` is `original` with `.sframe`, and all other sections are unchanged.

    A section that `original` has is replaced; the record has to restore what was there before this program added any.
    """
    known = proven_object(original)
    before = original if known is None else read_object(known.content)
    restored = original_of(rewritten.data)
    is_restored = restored is not None and is_equal(restored.content, before.data)
    expect(is_restored, "its record does not restore the original")
    check_added(before, rewritten)
