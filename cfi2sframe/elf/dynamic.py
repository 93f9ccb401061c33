# SPDX-License-Identifier: Apache-2.0
"""The dynamic section of a linked file, and the tables of relocations that the dynamic loader reads.

Both are found as the loader finds them (gABI, "Dynamic Section"); tables also by their sections, since a static program
has no dynamic section. The judge of rewritten files has a reader of its own (`placing/loader_tables.py`).
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import RELA_SIZE, Buffer, ByteOrder
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError

#: Words of 8 bytes that the bitmap of one SHT_RELR entry describes.
_BITMAP_WORDS: Final = 63
#: Entries that lead to tables of relocations, and those of their sizes. PLTs of lld and mold are in DT_JMPREL alone.
#: That is first, since DT_RELA may lead to the same table, or leave the file.
_SIZE_TAGS: Final = {
    c.DT_JMPREL: c.DT_PLTRELSZ,
    c.DT_RELA: c.DT_RELASZ,
    c.DT_RELR: c.DT_RELRSZ,
    c.DT_ANDROID_RELR: c.DT_ANDROID_RELRSZ,
}
_RELR_TAGS: Final = (c.DT_RELR, c.DT_ANDROID_RELR)
_SECTION_TAGS: Final = {c.SHT_RELA: c.DT_RELA, c.SHT_RELR: c.DT_RELR, c.SHT_ANDROID_RELR: c.DT_ANDROID_RELR}


class DynamicTable(NamedTuple):
    """The 64-bit words of a table of dynamic relocations; `tag` is that of the dynamic entry for such tables."""

    tag: int
    words: Sequence[int]

    def columns(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return all r_offset, r_info and r_addend, unsigned, of an Elf64_Rela table; none of a compact one."""
        words = self.words[:0] if self.tag in _RELR_TAGS else self.words
        return words[0::3], words[1::3], words[2::3]

    def records(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over r_offset, r_info and r_addend of each entry, as `columns` has them."""
        return zip(*self.columns(), strict=True)

    def packed(self) -> Iterator[tuple[int, int]]:
        """Yield what each word of a compact table (SHT_RELR) relocates; nothing for an Elf64_Rela table.

        Each is an address, and a bit for every 8 bytes from there on (gABI, "Relative Relocation Table").
        """
        position = 0
        for word in self.words if self.tag in _RELR_TAGS else ():
            if word & 1:
                yield position, word >> 1
                position += 8 * _BITMAP_WORDS
            else:
                yield word, 1
                position = word + 8


def words_of(data: Buffer, byte_order: ByteOrder, count: int) -> "array[int]":
    """Return the 64-bit words of a table's whole records, which have `count` words each.

    An array takes 8 bytes a word, a tuple 40, and callers read all loaded bytes of large files.
    """
    words = array("Q")
    words.frombytes(data[: len(data) // (8 * count) * 8 * count])
    if sys.byteorder != ("little" if byte_order == "<" else "big"):
        words.byteswap()
    return words


def dynamic_entries(image: ElfImage) -> dict[int, int]:
    """Return the entries of the dynamic section up to DT_NULL, by tag; a tag that repeats keeps its last value.

    So do glibc (`elf_get_dynamic_info`), bionic and, for the gABI's own tags, musl (`decode_vec`): they store an entry
    over the one before.
    """
    for segment in image.segments:
        if segment.type == c.PT_DYNAMIC:
            data = image.bytes_at(segment.vaddr, segment.file_size) or b""
            words = words_of(data, image.byte_order, 2)
            return dict(takewhile(lambda entry: entry[0] != c.DT_NULL, zip(words[0::2], words[1::2], strict=True)))
    return {}


def dynamic_tables(image: ElfImage) -> Iterator[DynamicTable]:
    """Yield the tables of dynamic relocations, each once, except for Android's packed ones.

    Raises `ElfError` at a table that leaves the file.
    """
    dynamic = dynamic_entries(image)
    seen = set[tuple[bool, int, int]]()
    for tag, size_tag in _SIZE_TAGS.items():
        vaddr, size = dynamic.get(tag, 0), dynamic.get(size_tag, 0)
        if tag in dynamic and size and (tag in _RELR_TAGS, vaddr, size) not in seen:
            seen.add((tag in _RELR_TAGS, vaddr, size))
            data = image.bytes_at(vaddr, size)
            if data is None:
                raise ElfError(f"a table of the dynamic section (tag {tag}) extends past the end of the file")
            yield _table(image, tag, data)
    for section in image.sections:
        tag = _SECTION_TAGS.get(section.type, c.DT_NULL) if section.flags & c.SHF_ALLOC else c.DT_NULL
        if tag and (tag in _RELR_TAGS, section.vaddr, section.size) not in seen:
            yield _table(image, tag, image.section_bytes(section))


def _table(image: ElfImage, tag: int, data: bytes) -> DynamicTable:
    return DynamicTable(tag, words_of(data, image.byte_order, 1 if tag in _RELR_TAGS else RELA_SIZE // 8))


def has_packed_relocations(image: ElfImage) -> bool:
    """Return whether a file has relocations in Android's packed form (lld --pack-dyn-relocs=android), not read here."""
    return c.DT_ANDROID_RELA in dynamic_entries(image) or any(s.type == c.SHT_ANDROID_RELA for s in image.sections)
