# SPDX-License-Identifier: Apache-2.0
"""A relocatable object as rewriting sees it, and what has to be equal before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import have_same
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, SECTION_HEADER_SIZE, ElfSection
from cfi2sframe.elf.spans import Span, without
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.record import record_span
from cfi2sframe.text import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage

_MODULE_SIGNATURE: Final = b"~Module signature appended~\n"
#: The header of an inactive section.
INACTIVE: Final = ElfSection(0, c.SHT_NULL, 0, 0, 0, 0, 0, 0, 0, 0)


def read_object(data: FileData) -> ElfImage:
    """Parse an object. Raises `EmbedError` for one that must not be changed."""
    from cfi2sframe.elf.image import ElfImage

    image = ElfImage(data, "object")
    check_object(image)
    return image


def check_object(image: ElfImage) -> None:
    """Raise `EmbedError` for an object that must not be changed."""
    if not image.sections:
        raise EmbedError("an object without section headers has no place for a section")
    if bytes(image.data[-len(_MODULE_SIGNATURE) :]) == _MODULE_SIGNATURE:
        raise EmbedError("a signed kernel module: any change breaks its signature; convert before signing")


def sframe_indices(image: ElfImage) -> list[int]:
    """Return the indices of all SFrame sections, and then of the sections that relocate them."""
    found = [section.index for section in image.sections if section.is_sframe]
    return [*found, *(s.index for s in image.sections if s.type in (c.SHT_RELA, c.SHT_REL) and s.info in found)]


def end_of(image: ElfImage) -> int:
    """Return where an object ends without a record for removal. What a header describes is no record."""
    table_end = image.header.section_headers_offset + SECTION_HEADER_SIZE * len(image.sections)
    described = max([table_end, *(section.file_span.end for section in image.sections if section.is_stored)])
    record = record_span(image.data)
    return len(image.data) if record is None or record.start < described else record.start


def check_added(before: ElfImage, rewritten: ElfImage) -> None:
    """Raise `EmbedError` unless `rewritten` is `before` with one SFrame section, new or in place of the old one."""
    check_kept(before, rewritten, set(sframe_indices(before)))
    found = {section.index for section in rewritten.sections if section.is_sframe}
    expect(len(found) == 1, f"there are {len(found)} SFrame sections")
    added = [s for s in rewritten.sections[len(before.sections) :] if s.index not in found]
    expect(all(s.type == c.SHT_RELA and s.info in found for s in added), "there are other new sections")


def check_kept(original: ElfImage, rewritten: ElfImage, other: set[int], changed: Sequence[Span] = ()) -> None:
    """Raise `EmbedError` unless all bytes are unchanged except in some spans, and all headers except of some sections.

    Inactive ones at the end may be missing. Sections may overlap, so the whole file is compared at once.
    """
    kept = without([Span(FILE_HEADER_SIZE, end_of(original))], changed)
    expect(all(have_same(original.data, rewritten.data, span) for span in kept), "the bytes of the old file changed")
    before, after = original.header, rewritten.header
    # Where the section table is, and how many headers it has, may change.
    table: dict[str, Any] = {"section_headers_offset": 0, "section_header_count": 0}
    expect(before._replace(**table) == after._replace(**table), "the file header changed")
    index = original.headers.names_index
    expect(index == rewritten.headers.names_index, "the section names are elsewhere")
    names, new_names = (i.section_bytes(i.sections[index]) for i in (original, rewritten))
    expect(names == new_names[: len(names)], "the section names changed")
    # The image assigns addresses, but not to these headers.
    headers = rewritten.headers.sections
    for old in original.headers.sections:
        if old.index in other or (old.index >= len(headers) and old.type == c.SHT_NULL):
            continue
        expect(old.index < len(headers), f"section {shown_name(old.name)} is missing")
        # Names may be long; an offset is a name.
        free: dict[str, Any] = {"name": ""}
        if old.index == 0:
            # The null section may have the count of sections.
            free["size"] = 0
        elif old.index == index:
            free |= {"file_offset": 0, "size": 0}
        same = old._replace(**free) == headers[old.index]._replace(**free)
        is_same_name = not len(names) <= old.name_offset < len(new_names)
        expect(same and is_same_name, f"section {shown_name(old.name) or old.index} differs")


def expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise EmbedError(f"the rewritten object fails its re-read: {message}")
