# SPDX-License-Identifier: Apache-2.0
"""The dynamic section of a linked file, found as the dynamic loader finds it (gABI, "Dynamic Section")."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf import constants as c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.elf.image import ElfImage

#: How many words of 8 bytes the bitmap of one SHT_RELR entry describes.
_BITMAP_WORDS: Final = 63
_ARRAYS = (
    (c.DT_INIT_ARRAY, c.DT_INIT_ARRAYSZ),
    (c.DT_FINI_ARRAY, c.DT_FINI_ARRAYSZ),
    (c.DT_PREINIT_ARRAY, c.DT_PREINIT_ARRAYSZ),
)


def dynamic_entries(image: ElfImage) -> dict[int, int]:
    """Return the entries of the dynamic section by tag; a tag that repeats keeps its last value."""
    for segment in image.segments:
        if segment.type == c.PT_DYNAMIC:
            data = image.bytes_at(segment.vaddr, segment.file_size) or b""
            usable = data[: len(data) // 16 * 16]
            return dict(struct.iter_unpack(image.byte_order + "QQ", usable))
    return {}


def packed_words(words: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield what each word of an SHT_RELR table relocates: an address, and a bit for each 8 bytes from there on.

    See the gABI, "Relative Relocation Table".
    """
    position = 0
    for word in words:
        if word & 1:
            yield position, word >> 1
            position += 8 * _BITMAP_WORDS
        else:
            yield word, 1
            position = word + 8


def dynamic_words(image: ElfImage) -> tuple[dict[int, str], dict[int, int]]:
    """Return what the dynamic loader writes to words of a linked file, by their addresses.

    These are names of symbols whose addresses it writes, and addends where it knows no symbol; words of compact
    relocations (SHT_RELR), which hold their addends themselves, are left out. Raises `ElfError` when a table of
    relocations or symbols leaves the file.
    """
    names: dict[int, str] = {}
    addends: dict[int, int] = {}
    for table in image.sections:
        if table.type != c.SHT_RELA or not table.flags & c.SHF_ALLOC:
            continue
        symbol_names = _symbol_names(image, table.link)
        for place, info, addend in image.records(table, "QQQ"):
            index = info >> 32
            if not index:
                addends[place] = addend
            elif index < len(symbol_names):
                names[place] = symbol_names[index]
    return names, addends


def _symbol_names(image: ElfImage, index: int) -> list[str]:
    if not 0 < index < len(image.sections) or image.sections[index].type not in (c.SHT_DYNSYM, c.SHT_SYMTAB):
        return []
    return [symbol.name for symbol in image.symbols(image.sections[index])]


def initializer_vaddrs(image: ElfImage) -> set[int]:
    """Return the addresses in a linked file's arrays of functions to call at the start and at the end of a process.

    In a file at fixed addresses no relocation names them (gABI, "Initialization and Termination Functions"). Raises
    `ElfError` when an array leaves the file.
    """
    arrays = [
        image.section_bytes(section)
        for section in image.sections
        if section.type in (c.SHT_INIT_ARRAY, c.SHT_FINI_ARRAY, c.SHT_PREINIT_ARRAY)
    ]
    if not image.sections:
        dynamic = dynamic_entries(image)
        for tag, size_tag in _ARRAYS:
            arrays.append(image.bytes_at(dynamic.get(tag, 0), dynamic.get(size_tag, 0)) or b"")
    usable = [data[: len(data) // 8 * 8] for data in arrays]
    return {vaddr for data in usable for (vaddr,) in struct.iter_unpack(image.byte_order + "Q", data)}
