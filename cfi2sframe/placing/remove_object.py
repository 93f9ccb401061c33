# SPDX-License-Identifier: Apache-2.0
"""Take SFrame sections out of a relocatable object, and check that nothing else has changed.

As in linked files, the record of a conversion restores the original. Sections of assemblers have none.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import is_zero, overwrite, part_of, spliced
from cfi2sframe.elf.headers import SECTION_HEADER_SIZE, SYMBOL_SIZE
from cfi2sframe.elf.spans import Span
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.object_file import (
    INACTIVE,
    check_added,
    check_kept,
    end_of,
    expect,
    read_object,
    sframe_indices,
)
from cfi2sframe.placing.record import digest_of, original_of
from cfi2sframe.placing.remove import CHANGED_SINCE, Removal
from cfi2sframe.text import shown_name

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ElfSection
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.placing.record import Original

#: A word of a section group.
_WORD_SIZE: Final = 4


def remove_from_object(data: FileData) -> Removal:
    """Return an object without its SFrame sections, and without their relocations.

    That is the original, if its record fits. Otherwise their bytes become zeros, symbols of theirs become null symbols,
    and section groups lose them; their headers are removed where they are the last ones, and made inactive (SHT_NULL)
    where they are not, because other sections keep their indices. Raises `EmbedError` when there is no `.sframe`, or
    when a relocation of another section needs a symbol of it.
    """
    old = read_object(data)
    original = proven_object(old)
    if original is not None:
        return Removal(original.content, "" if original.is_exact else CHANGED_SINCE)
    removed = set(sframe_indices(old))
    if not removed:
        raise EmbedError("no .sframe section")
    headers = [INACTIVE if header.index in removed else header for header in old.headers.sections]
    splices = [overwrite(s.file_offset, bytes(s.size)) for s in old.sections if s.index in removed and s.is_stored]
    for section in old.sections:
        if section.type == c.SHT_SYMTAB:
            splices.append(overwrite(section.file_offset, _without_symbols(old, section, removed)))
        elif section.type == c.SHT_GROUP and _has_member(old, section, removed):
            content = _without_members(old, section, removed)
            # Some tools refuse a group without members.
            is_left = len(content) > _WORD_SIZE
            headers[section.index] = headers[section.index]._replace(size=len(content)) if is_left else INACTIVE
            splices.append(overwrite(section.file_offset, content.ljust(section.size, b"\0")))
    last = max(header.index for header in headers if header.type != c.SHT_NULL)
    table = b"".join(header.pack(old.byte_order) for header in headers[: last + 1])
    splices.append(overwrite(old.header.section_headers_offset, table.ljust(SECTION_HEADER_SIZE * len(headers), b"\0")))
    if old.header.section_header_count:
        splices.append(overwrite(0, old.header._replace(section_header_count=last + 1).pack()))
    return Removal(spliced(part_of(data, 0, end_of(old)), splices))


def proven_object(image: ElfImage) -> Original | None:
    """Return the original of an object by its record, if the object is that with a section, and otherwise the same."""
    original = original_of(image.data)
    try:
        if original is not None:
            check_added(read_object(original.content), image)
    except (ElfError, EmbedError):
        return None
    return original


def _without_symbols(image: ElfImage, table: ElfSection, removed: set[int]) -> bytes:
    """Return a symbol table in which the symbols of some sections are null symbols.

    Raises `EmbedError` where one of them is not local, or a relocation of another section needs it.
    """
    content = bytearray(image.section_bytes(table))
    numbers = {number for number, symbol in enumerate(image.symbols(table)) if symbol.section_index in removed}
    for number in numbers:
        at = SYMBOL_SIZE * number
        if content[at + 4] >> 4 != c.STB_LOCAL:
            raise EmbedError("a global symbol is in .sframe; the section cannot be removed")
        content[at : at + SYMBOL_SIZE] = bytes(SYMBOL_SIZE)
    tables = [s for s in image.sections if s.type == c.SHT_RELA and s.link == table.index and s.index not in removed]
    for section in tables if numbers else ():
        if any(info >> 32 in numbers for _, info, _ in image.records(section, "QQq")):
            raise EmbedError(f"{shown_name(section.name)} refers to .sframe; the section cannot be removed")
    return bytes(content)


def _has_member(image: ElfImage, group: ElfSection, indices: set[int]) -> bool:
    """Whether any of some sections is in a section group."""
    _flags, *members = [word for (word,) in image.records(group, "I")] or [0]
    return not indices.isdisjoint(members)


def _without_members(image: ElfImage, group: ElfSection, removed: set[int]) -> bytes:
    """Return the words of a section group (gABI, "Section Groups") without some sections."""
    flags, *members = [word for (word,) in image.records(group, "I")]
    kept = [flags, *(member for member in members if member not in removed)]
    return struct.pack(f"{image.byte_order}{len(kept)}I", *kept)


def check_object_without(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without `.sframe`, and all other sections are unchanged."""
    known = proven_object(original)
    if known is not None:
        expect(digest_of(rewritten.data) == digest_of(known.content), "it is not the original")
        return
    expect(not any(section.is_sframe for section in rewritten.sections), "the section is still there")
    removed = set(sframe_indices(original))
    edited = [s for s in original.sections if s.type == c.SHT_SYMTAB]
    edited += [s for s in original.sections if s.type == c.SHT_GROUP and _has_member(original, s, removed)]
    gone = [s.file_span for s in original.sections if s.index in removed and s.is_stored]
    start = original.header.section_headers_offset
    table = Span(start, start + SECTION_HEADER_SIZE * len(original.sections))
    groups = {section.index for section in edited if section.type == c.SHT_GROUP}
    check_kept(original, rewritten, removed | groups, [*gone, table, *(section.file_span for section in edited)])
    expect(all(is_zero(rewritten.data, span) for span in gone), "something is left of the section")
    for section in edited:
        form = "6I" if section.type == c.SHT_SYMTAB else "I"
        # The header of a group that is empty now may be gone.
        before, after = (
            [words for each in i.sections[section.index : section.index + 1] for words in i.records(each, form)]
            for i in (original, rewritten)
        )
        if section.type == c.SHT_GROUP:
            wanted = [word for word in before if word[0] not in removed]
            expect(after == (wanted if len(wanted) > 1 else []), "a group has lost other sections")
            continue
        nulled = {n for n, symbol in enumerate(original.symbols(section)) if symbol.section_index in removed}
        wanted = [(0,) * 6 if number in nulled else words for number, words in enumerate(before)]
        expect(after == wanted, "other symbols changed")
    for header in rewritten.headers.sections:
        is_gone = header._replace(name_offset=0, name="", index=0) == INACTIVE
        expect(header.index not in removed or is_gone, "a header of the section is still there")
