# SPDX-License-Identifier: Apache-2.0
"""An ELF file whose CFI is hidden, as `objcopy --remove-section` would hide it; for tools/hidden_cfi.py."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe import load
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE
from cfi2sframe.errors import UnfitError
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.sections import ElfSection

#: All that tells where functions start and what their rows are, whoever reads it.
_SECTIONS: Final = frozenset(
    (
        ".eh_frame",
        ".eh_frame_hdr",
        ".debug_frame",
        ".zdebug_frame",
        ".gopclntab",
        ".data.rel.ro.gopclntab",
        ".sframe",
    )
)
_SEGMENTS: Final = frozenset((c.PT_GNU_EH_FRAME, c.PT_GNU_SFRAME))
_RELOCATIONS: Final = frozenset((c.SHT_RELA, c.SHT_REL))


def hidden_image(image: ElfImage, *, strip: bool = False) -> ElfImage:
    """Return an image of a copy of the file: all addresses are the same, but the copy tells nothing of its CFI.

    Sections of CFI have zeros for their bytes, and become SHT_NOBITS, with their relocations; their segments become
    PT_NULL. `strip`: the symbol table of a linked file, and relocations that refer to it, are hidden, too.
    Raises `UnfitError` when the copy still has CFI, as one without section headers would.
    """
    data = bytearray(image.data[:])
    header, order = image.header, image.byte_order
    for section in image.sections:
        if _is_hidden(image, section, strip=strip):
            if section.type != c.SHT_NOBITS:
                _clear(data, section.file_offset, section.size)
            # `sh_type` follows the 4 bytes of `sh_name`.
            at = header.section_headers_offset + section.index * SECTION_HEADER_SIZE + 4
            struct.pack_into(order + "I", data, at, c.SHT_NOBITS)
    for index, segment in enumerate(image.segments):
        if segment.type in _SEGMENTS:
            _clear(data, segment.file_offset, segment.file_size)
            at = header.program_headers_offset + index * PROGRAM_HEADER_SIZE
            struct.pack_into(order + "I", data, at, c.PT_NULL)
    copy = load(bytes(data), image.name)
    if not image.sections or find_cfi(copy, "code").sections:
        raise UnfitError("the CFI cannot be hidden")
    return copy


def _is_hidden(image: ElfImage, section: ElfSection, *, strip: bool) -> bool:
    if section.name in _SECTIONS:
        return True
    is_stripped = strip and not image.is_relocatable
    if section.type in _RELOCATIONS and not section.flags & c.SHF_ALLOC:
        sections = image.sections
        target = sections[section.info].name if section.info < len(sections) else ""
        return is_stripped or target in _SECTIONS
    return is_stripped and section.type == c.SHT_SYMTAB


def _clear(data: bytearray, offset: int, size: int) -> None:
    end = min(offset + size, len(data))
    data[offset:end] = bytes(max(0, end - offset))
