# SPDX-License-Identifier: Apache-2.0
"""The SFrame section that a file has: one answer, which every verb reads.

In: an image. Out: an `Existing`. A table in docs/deploying.md shows what each verb does with it.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from cfi2sframe.constants.elf import SHT_NOBITS
from cfi2sframe.elf.cfi import relocated_bytes
from cfi2sframe.elf.headers import SFRAME_NAME, ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError, InputError, SFrameError, UnfitError
from cfi2sframe.sframe.read import DecodedSection, read_damaged


class Presence(Enum):
    """The extent to which a file has a section."""

    ABSENT = "no .sframe section"
    EMPTY = "the .sframe section is empty"
    WITHOUT_BYTES = "a separate debug file: the bytes of its .sframe section are in the program"
    DAMAGED = "the .sframe section is damaged"
    SEVERAL = "several .sframe sections"
    READABLE = "an .sframe section"


class Existing(NamedTuple):
    """The section of a file: READABLE, EMPTY but for its header, or up to the damage if DAMAGED (`error`).

    `is_loaded`: PT_GNU_SFRAME leads readers of a running program to it; an object's section is for a linker.
    """

    presence: Presence
    section: DecodedSection | None = None
    error: InputError | None = None
    is_loaded: bool = False

    def or_raise(self) -> DecodedSection:
        """Return the section. Raises `UnfitError` when the file has none, `InputError` when it cannot be read."""
        if self.error is not None:
            raise self.error
        if self.section is not None:
            return self.section
        if self.presence is Presence.SEVERAL:
            raise InputError(self.presence.value)
        raise UnfitError(self.presence.value)


def existing_section(image: ElfImage) -> Existing:
    """Return the section that a file has; that of an object with its relocations applied.

    Functions of an object start at addresses of the image's layout (see `ElfImage.place`).
    """
    sections = [section for section in image.sections if section.is_sframe]
    if len(sections) > 1:
        return Existing(Presence.SEVERAL)
    if image.is_debug_file and any(s.name == SFRAME_NAME and s.type == SHT_NOBITS for s in image.sections):
        return Existing(Presence.WITHOUT_BYTES)
    segment = image.sframe_segment
    if not sections and segment is None:
        return Existing(Presence.ABSENT)
    try:
        vaddr, data = _stored(image, sections)
        if not data:
            return Existing(Presence.EMPTY)
        section, damage = read_damaged(data, vaddr, is_object=image.is_relocatable)
    except (ElfError, SFrameError) as error:
        return Existing(Presence.DAMAGED, error=error)
    if damage is not None:
        return Existing(Presence.DAMAGED, section, damage)
    if not section.starts:
        return Existing(Presence.EMPTY, section)
    is_loaded = segment is not None and segment.vaddr == vaddr and image.bytes_at(vaddr, len(data)) is not None
    return Existing(Presence.READABLE, section, is_loaded=is_loaded)


def _stored(image: ElfImage, sections: Sequence[ElfSection]) -> tuple[int, bytes | None]:
    """Return the address and the bytes of the one SFrame section or, without section headers, of PT_GNU_SFRAME.

    A segment of zeros has lost its section. Raises `ElfError`.
    """
    if sections:
        return sections[0].vaddr, relocated_bytes(image, sections[0])
    segment = image.sframe_segment
    data = None if segment is None else image.bytes_at(segment.vaddr, segment.file_size)
    return 0 if segment is None else segment.vaddr, data if data and data.strip(b"\0") else None
