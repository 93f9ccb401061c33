# SPDX-License-Identifier: Apache-2.0
"""The door for relocatable objects: insert a section and its relocations into a copy of one, remove them, and check.

All other sections keep their bytes, file offsets and indices. What is inserted is appended: contents, the stamp, a new
section table, and the record for removal. As in linked files, the record restores the original; the sections of
assemblers have none. Knows nothing of what the section's bytes mean.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import (
    FileData,
    Joined,
    digest_of,
    have_same,
    is_equal,
    is_zero,
    overwrite,
    part_of,
    spliced,
)
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    INACTIVE,
    RELA_SIZE,
    SECTION_HEADER_SIZE,
    SFRAME_NAME,
    SYMBOL_SIZE,
    Buffer,
    ElfSection,
)
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.placing.undo import (
    Kept,
    NoOriginal,
    Original,
    Removal,
    original_of,
    record_span,
    with_record,
)
from cfi2sframe.range_map import Span, without
from cfi2sframe.text import shown_name

_MODULE_SIGNATURE: Final = b"~Module signature appended~\n"
_RELA_NAME: Final = b".rela.sframe\0"


class ObjectRelocation(NamedTuple):
    """An entry of `.rela.sframe`; `offset` counts bytes from the start of the section."""

    offset: int
    type: int
    symbol_index: int
    addend: int


def refuse_object(image: ElfImage) -> None:
    """Raise `EmbedError` for an object that must not be changed."""
    if not image.sections:
        raise EmbedError("an object without section headers has no place for a section")
    if bytes(image.data[-len(_MODULE_SIGNATURE) :]) == _MODULE_SIGNATURE:
        raise EmbedError("a signed kernel module: any change breaks its signature; convert before signing")


def _opened(data: FileData) -> ElfImage:
    image = ElfImage(data, "object")
    refuse_object(image)
    return image


def _sframe_indices(image: ElfImage) -> list[int]:
    """Return the indices of all SFrame sections, and then of the sections that relocate them."""
    own = [section.index for section in image.sections if section.is_sframe]
    return [*own, *(s.index for s in image.sections if s.type in (c.SHT_RELA, c.SHT_REL) and s.info in own)]


def _section_table(image: ElfImage) -> Span:
    start = image.header.section_headers_offset
    return Span(start, start + SECTION_HEADER_SIZE * len(image.sections))


def _end_of(image: ElfImage) -> int:
    """Return the end of an object without its record for removal. What a header describes is no record."""
    described = max([_section_table(image).end, *(s.file_span.end for s in image.sections if s.is_stored)])
    record = record_span(image.data)
    return len(image.data) if record is None or record.start < described else record.start


def _proven_original(image: ElfImage) -> Original | None:
    """Return the original of an object by its record, if the object is equal to it except for the section."""
    original = original_of(image.data)
    if isinstance(original, NoOriginal):
        return None
    try:
        _check_added(_opened(original.content), image)
    except (ElfError, EmbedError):
        return None
    return original


# Inserting


def insert(
    data: FileData,
    section: bytes,
    relocations: Sequence[ObjectRelocation],
    section_type: int = c.SHT_GNU_SFRAME,
    stamp: bytes = b"",
) -> Joined:
    """Return a copy of an object with `.sframe` and `.rela.sframe`: buffers to be written one after the other.

    An SFrame section that was inserted is removed first; that of an assembler is replaced, and it and its relocations
    keep their indices. Raises `EmbedError` when the object does not have exactly one symbol table, has several SFrame
    sections, or cannot be changed without risk.
    """
    old = _opened(data)
    proven = _proven_original(old)
    if proven is not None:
        old = _opened(proven.content)
    tables = [section.index for section in old.sections if section.type == c.SHT_SYMTAB]
    if len(tables) != 1:
        raise EmbedError(f"{len(tables)} symbol tables; relocations need exactly one")
    headers = list(old.headers.sections)
    tail = _FileTail(len(old.data))
    name_offset, rela_name_offset = _add_names(old, headers, tail)
    replaced = _sframe_indices(old)
    if len(replaced) > 2:
        raise EmbedError("several SFrame sections, or relocations of one; remove them first")
    if len(replaced) < 2 and (last := _last_symbol_section(old, tables[0])) >= len(headers):
        raise EmbedError(f"a symbol is in section {last}, which does not exist; the new section could get that index")
    new = range(len(headers), len(headers) + 2 - len(replaced))
    index, rela_index = (*replaced, *new)
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
        struct.pack(old.byte_order + "QQq", offset, symbol_index << 32 | kind, addend)
        for offset, kind, symbol_index, addend in relocations
    )
    headers[rela_index] = INACTIVE._replace(
        name_offset=rela_name_offset,
        type=c.SHT_RELA,
        flags=c.SHF_INFO_LINK,
        file_offset=tail.add(packed, 8),
        size=len(packed),
        link=tables[0],
        info=index,
        alignment=8,
        entry_size=RELA_SIZE,
    )
    kept = [Kept(0, len(old.data), 0)]
    tail.add(stamp, 8)
    # Only differences in the header are recorded: later edits of the rest are kept.
    return with_record(old.data, _finish(old, headers, tail), kept, (), [Span(0, FILE_HEADER_SIZE)])


def _last_symbol_section(image: ElfImage, table_index: int) -> int:
    """Return the highest section index that a symbol has."""
    symbols = image.symbols(image.sections[table_index])
    reserved = range(c.SHN_LORESERVE, 1 << 16)
    return max((symbol.section_index for symbol in symbols if symbol.section_index not in reserved), default=0)


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
    count = len(headers)
    # The null section has the count of sections where it is large.
    is_large = count >= c.SHN_LORESERVE
    if is_large or old.header.section_header_count == 0:
        headers[0] = headers[0]._replace(size=count if is_large else 0)
    offset = tail.add(b"".join(header.pack(old.byte_order) for header in headers), 8)
    header = old.header._replace(section_headers_offset=offset, section_header_count=0 if is_large else count)
    return Joined([header.pack(), part_of(old.data, FILE_HEADER_SIZE, len(old.data)), *tail.chunks])


def check_insertion(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` with `.sframe`, and all other sections are unchanged.

    A section that `original` has is replaced; the record has to restore what was there before any was inserted.
    """
    proven = _proven_original(original)
    before = original if proven is None else _opened(proven.content)
    restored = original_of(rewritten.data)
    is_restored = isinstance(restored, Original) and is_equal(restored.content, before.data) and restored.is_exact
    _expect(is_restored, "its record does not restore the original")
    _check_added(before, rewritten)
    _check_for_linkers(rewritten)


def _check_added(before: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `before` with one SFrame section, new or in place of the old one."""
    _check_kept(before, rewritten, set(_sframe_indices(before)))
    sframe = {section.index for section in rewritten.sections if section.is_sframe}
    _expect(len(sframe) == 1, f"there are {len(sframe)} SFrame sections")
    others = [s for s in rewritten.sections[len(before.sections) :] if s.index not in sframe]
    _expect(all(s.type == c.SHT_RELA and s.info in sframe for s in others), "there are other new sections")


def _check_for_linkers(image: ElfImage) -> None:
    """Raise `EmbedError` unless linkers take an object's SFrame section, and relocate it (gABI, "Sections")."""
    section, *relocations = [image.sections[index] for index in _sframe_indices(image)]
    is_taken = section.name == SFRAME_NAME and section.flags == c.SHF_ALLOC
    _expect(is_taken and section.alignment == 8 and section.is_stored, "linkers would not take .sframe")
    for table in relocations:
        symbols = image.sections[table.link] if table.link < len(image.sections) else table
        form = (table.name, table.type, table.flags, table.entry_size, table.size % RELA_SIZE, symbols.type)
        wanted = (_RELA_NAME[:-1].decode(), c.SHT_RELA, c.SHF_INFO_LINK, RELA_SIZE, 0, c.SHT_SYMTAB)
        _expect(form == wanted, f"linkers would not read {shown_name(table.name)}")
    _expect(len(relocations) == 1, "there is not one section of relocations for .sframe")


# Removing


def remove(data: FileData) -> Removal:
    """Return an object without its SFrame sections, and without their relocations.

    That is the original, if its record fits. Otherwise their bytes become zeros, their symbols become null symbols, and
    section groups lose them; their headers are removed if they are the last ones, and otherwise made inactive
    (SHT_NULL), because other sections keep their indices. Raises `EmbedError` when there is no `.sframe`, or
    when a relocation of another section needs a symbol of it.
    """
    old = _opened(data)
    original = _proven_original(old)
    if original is not None:
        return original.removal()
    removed = set(_sframe_indices(old))
    if not removed:
        raise EmbedError("no .sframe section")
    headers = [INACTIVE if header.index in removed else header for header in old.headers.sections]
    zeroed = [section for section in old.sections if section.index in removed and section.is_stored]
    # A header may give a section more bytes than any file has.
    splices = [overwrite(section.file_offset, bytes(len(old.section_bytes(section)))) for section in zeroed]
    tables = [section for section in old.sections if section.type == c.SHT_SYMTAB]
    splices += [overwrite(table.file_offset, _without_symbols(old, table, removed)) for table in tables]
    for group in _groups_with(old, removed):
        words = _without_members(old, group, removed)
        content = struct.pack(f"{old.byte_order}{len(words)}I", *words)
        # Some tools refuse a group without members.
        headers[group.index] = headers[group.index]._replace(size=len(content)) if len(words) > 1 else INACTIVE
        splices.append(overwrite(group.file_offset, content.ljust(group.size, b"\0")))
    last = max(header.index for header in headers if header.type != c.SHT_NULL)
    table = b"".join(header.pack(old.byte_order) for header in headers[: last + 1])
    splices.append(overwrite(old.header.section_headers_offset, table.ljust(SECTION_HEADER_SIZE * len(headers), b"\0")))
    if old.header.section_header_count:
        splices.append(overwrite(0, old.header._replace(section_header_count=last + 1).pack()))
    return Removal(spliced(part_of(data, 0, _end_of(old)), splices), is_cleared=True)


def _without_symbols(image: ElfImage, table: ElfSection, removed: set[int]) -> bytes:
    """Return a symbol table in which the symbols of some sections are null symbols.

    Raises `EmbedError` where one of them is not local, or a relocation of another section needs it.
    """
    content = bytearray(image.section_bytes(table))
    nulled = _symbols_in(image, table, removed)
    for symbol_index in nulled:
        at = SYMBOL_SIZE * symbol_index
        if content[at + 4] >> 4 != c.STB_LOCAL:
            raise EmbedError("a global symbol is in .sframe; the section cannot be removed")
        content[at : at + SYMBOL_SIZE] = bytes(SYMBOL_SIZE)
    users = [s for s in image.sections if s.type == c.SHT_RELA and s.link == table.index and s.index not in removed]
    for section in users if nulled else ():
        if any(info >> 32 in nulled for _, info, _ in image.records(section, "QQq")):
            raise EmbedError(f"{shown_name(section.name)} refers to .sframe; the section cannot be removed")
    return bytes(content)


def _symbols_in(image: ElfImage, table: ElfSection, indices: set[int]) -> set[int]:
    """Return the indices of the symbols that are in some sections."""
    return {number for number, symbol in enumerate(image.symbols(table)) if symbol.section_index in indices}


def _groups_with(image: ElfImage, indices: set[int]) -> list[ElfSection]:
    """Return the section groups that have any of some sections."""
    groups = [section for section in image.sections if section.type == c.SHT_GROUP]
    return [group for group in groups if not indices.isdisjoint(_words_of(image, group)[1:])]


def _without_members(image: ElfImage, group: ElfSection, indices: set[int]) -> list[int]:
    """Return the words of a section group (gABI, "Section Groups"), flags and members, without some sections."""
    words = _words_of(image, group)
    return [*words[:1], *(member for member in words[1:] if member not in indices)]


def _words_of(image: ElfImage, group: ElfSection) -> list[int]:
    return [word for (word,) in image.records(group, "I")]


def check_removal(original: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `original` without `.sframe`, and all other sections are unchanged."""
    proven = _proven_original(original)
    if proven is not None:
        _expect(digest_of(rewritten.data) == digest_of(proven.content), "it is not the original")
        return
    _expect(not any(section.is_sframe for section in rewritten.sections), "the section is still there")
    removed = set(_sframe_indices(original))
    tables = [s for s in original.sections if s.type == c.SHT_SYMTAB]
    groups = _groups_with(original, removed)
    zeroed = [s.file_span for s in original.sections if s.index in removed]
    changed = [*zeroed, _section_table(original), *(section.file_span for section in (*tables, *groups))]
    _check_kept(original, rewritten, removed | {group.index for group in groups}, changed)
    _expect(all(is_zero(rewritten.data, span) for span in zeroed), "something is left of the section")
    for group in groups:
        # The header of a group that is empty now may be gone.
        words = [word for new in rewritten.sections[group.index :][:1] for word in _words_of(rewritten, new)]
        wanted = _without_members(original, group, removed)
        _expect(words == (wanted if len(wanted) > 1 else []), "a group has lost other sections")
    for table in tables:
        nulled = _symbols_in(original, table, removed)
        before, after = (list(image.records(image.sections[table.index], "6I")) for image in (original, rewritten))
        symbols = [(0,) * 6 if number in nulled else symbol for number, symbol in enumerate(before)]
        _expect(after == symbols, "other symbols changed")
    for header in rewritten.headers.sections:
        is_gone = header._replace(name_offset=0, name="", index=0) == INACTIVE
        _expect(header.index not in removed or is_gone, "a header of the section is still there")


def _check_kept(original: ElfImage, rewritten: ElfImage, other: set[int], changed: Sequence[Span] = ()) -> None:
    """Raise `EmbedError` unless all bytes are unchanged except in some spans, and all headers except of some sections.

    Inactive ones at the end may be missing. Sections may overlap, so the whole file is compared at once.
    """
    kept = without([Span(FILE_HEADER_SIZE, _end_of(original))], changed)
    _expect(all(have_same(original.data, rewritten.data, span) for span in kept), "the bytes of the old file changed")
    before, after = original.header, rewritten.header
    # The place of the section table, and the number of its headers, may change.
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
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise EmbedError(f"the rewritten object fails its re-read: {message}")
