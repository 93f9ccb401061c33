# SPDX-License-Identifier: Apache-2.0
"""Every address that a file refers to by a symbol, as an entry point, or by a relocation.

Other addresses may still be reached by falling through, or by a branch whose target the assembler resolved.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries, dynamic_tables, words_of
from cfi2sframe.elf.headers import RELA_SIZE, SYMBOL_SIZE, ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError

#: Words of a packed table: `r_offset`, `r_info`, `r_addend` of Elf64_Rela; `st_value` is the second word of Elf64_Sym.
_RELA_WORDS: Final = RELA_SIZE // 8
_SYMBOL_WORDS: Final = SYMBOL_SIZE // 8
#: The section in which GCC and Clang list each function's instructions for tracers, which may precede its entry.
_PATCHABLE: Final = "__patchable_function_entries"
_ARRAYS = (
    (c.DT_INIT_ARRAY, c.DT_INIT_ARRAYSZ),
    (c.DT_FINI_ARRAY, c.DT_FINI_ARRAYSZ),
    (c.DT_PREINIT_ARRAY, c.DT_PREINIT_ARRAYSZ),
)


def referred_addresses(image: ElfImage, *, with_static: bool = True) -> set[int]:
    """Return the addresses that symbols, entry points and relocations of a file name, and those that relocations fill.

    They may be addresses of anything; in an object, those of the image's layout. `with_static`: count relocations of
    objects and of `ld --emit-relocs`, too; in a table of distances, these name addresses near the intended ones. Raises
    `ElfError` when one of the tables cannot be read.
    """
    vaddrs = {image.header.entry_vaddr}
    symbol_tables = {table.index for table in image.symbol_tables}
    if image.is_relocatable:
        for table in image.symbol_tables:
            vaddrs.update(vaddr for vaddr in image.symbol_vaddrs(table) if vaddr is not None)
    else:
        dynamic = dynamic_entries(image)
        vaddrs.update(dynamic[tag] for tag in (c.DT_INIT, c.DT_FINI) if tag in dynamic)
        vaddrs.update(_symbol_values(image, dynamic))
        vaddrs.update(_dynamic_targets(image))
        for section in image.sections_named(_PATCHABLE):
            vaddrs.update(words_of(image.section_bytes(section), image.byte_order, 1))
    for table in image.sections if with_static else ():
        if table.type in (c.SHT_RELA, c.SHT_REL) and not table.flags & c.SHF_ALLOC and table.info < len(image.sections):
            target = image.sections[table.info]
            if target.flags & c.SHF_ALLOC:
                if table.type == c.SHT_REL or table.link not in symbol_tables:
                    raise ElfError("relocations without addends, or without symbols", table.name)
                _add_static(image, table, target, vaddrs)
    return vaddrs


def _symbol_values(image: ElfImage, dynamic: dict[int, int]) -> Iterator[int]:
    """Yield `st_value` of all symbols of a linked file."""
    for table in image.symbol_tables:
        yield from words_of(image.section_bytes(table), image.byte_order, _SYMBOL_WORDS)[1::_SYMBOL_WORDS]
    if not image.sections and c.DT_SYMTAB in dynamic:
        data = image.bytes_at(dynamic[c.DT_SYMTAB], SYMBOL_SIZE * _symbol_count(image, dynamic))
        if data is None:
            raise ElfError("no section headers, and a dynamic symbol table of unknown size")
        yield from words_of(data, image.byte_order, _SYMBOL_WORDS)[1::_SYMBOL_WORDS]


def _symbol_count(image: ElfImage, dynamic: dict[int, int]) -> int:
    """Return the number of dynamic symbols by a hash table. Raises `ElfError` without one.

    DT_GNU_HASH leaves out symbols that are undefined or name a section; if it is empty, these are all.
    """

    def numbers_at(vaddr: int, count: int, code: str = "I") -> tuple[int, ...]:
        record = struct.Struct(f"{image.byte_order}{count}{code}") if count * 4 <= len(image.data) else None
        data = None if record is None else image.bytes_at(vaddr, record.size)
        if record is None or data is None:
            raise ElfError("no section headers, and a dynamic symbol table of unknown size")
        return record.unpack(data)

    if c.DT_HASH in dynamic:
        # The header has two numbers: of buckets, and of symbols. lld's have 4 bytes on s390x, too, whose psABI wants 8.
        is_short = image.arch.hash_word == "Q" and numbers_at(dynamic[c.DT_HASH], 1) != (0,)
        return numbers_at(dynamic[c.DT_HASH], 2, "I" if is_short else image.arch.hash_word)[1]
    bucket_count, first, bloom_size = numbers_at(dynamic.get(c.DT_GNU_HASH, 0), 3)
    buckets = dynamic.get(c.DT_GNU_HASH, 0) + 16 + 8 * bloom_size
    last = max(numbers_at(buckets, bucket_count), default=0)
    if last < first:
        return first
    # An odd number ends the chain of a bucket.
    chains = buckets + 4 * bucket_count
    while not numbers_at(chains + 4 * (last - first), 1)[0] & 1:
        last += 1
    return last + 1


def _dynamic_targets(image: ElfImage) -> Iterator[int]:
    """Yield the addends of dynamic relocations; those of compact ones are in the words that they relocate."""
    for table in dynamic_tables(image):
        yield from table.columns()[2]
        for start, bitmap in table.packed():
            for bit in range(bitmap.bit_length()):
                word = image.bytes_at(start + 8 * bit, 8) if bitmap >> bit & 1 else None
                if word is not None:
                    yield int.from_bytes(word, "little" if image.byte_order == "<" else "big")


def _add_static(image: ElfImage, table: ElfSection, target: ElfSection, vaddrs: set[int]) -> None:
    """Add the targets and the places of the relocations of a section, of an object or kept by `ld --emit-relocs`."""
    words = words_of(image.section_bytes(table), image.byte_order, _RELA_WORDS)
    symbol_vaddrs = image.symbol_vaddrs(image.sections[table.link])
    base = target.vaddr if image.is_relocatable else 0
    vaddrs.update([base + offset for offset in words[0::_RELA_WORDS]])
    # As signed numbers, because most addends of code are negative.
    addends = array("q", words[2::_RELA_WORDS].tobytes())
    absolute = {kind for kind, (_, is_relative) in image.arch.cfi_relocations.items() if not is_relative}
    bias = image.arch.distance_bias if target.is_code else 0
    for info, addend in zip(words[1::_RELA_WORDS], addends, strict=True):
        index = info >> 32
        vaddr = symbol_vaddrs[index] if index < len(symbol_vaddrs) else None
        if vaddr is not None:
            vaddrs.add(vaddr + addend - (0 if info & 0xFFFFFFFF in absolute else bias))


def dynamic_words(image: ElfImage) -> tuple[dict[int, str], dict[int, int]]:
    """Return what the dynamic loader writes to words of a linked file, by their addresses: symbols' names, and addends.

    The names are of symbols whose addresses it writes; addends are of relocations without a symbol. Words of compact
    relocations (SHT_RELR), which hold their addends themselves, are left out. Raises `ElfError` when a table of
    relocations or symbols leaves the file.
    """
    names: dict[int, str] = {}
    addends: dict[int, int] = {}
    symbol_names = [s.name for table in image.symbol_tables if table.type == c.SHT_DYNSYM for s in image.symbols(table)]
    for table in dynamic_tables(image):
        for place, info, addend in table.records():
            index = info >> 32
            if not index:
                addends[place] = addend
            elif index < len(symbol_names):
                names[place] = symbol_names[index]
    return names, addends


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
    return {vaddr for data in arrays for vaddr in words_of(data, image.byte_order, 1)}
