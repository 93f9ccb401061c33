# SPDX-License-Identifier: Apache-2.0
"""The tables of the dynamic loader as it reads them: by dynamic entries and what is in the tables, not by sections."""

import struct
from collections.abc import Iterator
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import words_of
from cfi2sframe.elf.headers import RELA_SIZE, SYMBOL_SIZE
from cfi2sframe.placing.pyelftools_view import FileView
from cfi2sframe.range_map import Span

#: Entries of tables that the loader reads wherever they are.
BY_CONTENT: Final = frozenset(
    {c.DT_HASH, c.DT_GNU_HASH, c.DT_STRTAB, c.DT_SYMTAB, c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED}
)
#: Other entries whose value is an address (gABI, "Dynamic Section"); from DT_ENCODING on, these have even tags.
_POINTERS: Final = frozenset(
    {c.DT_PLTGOT, c.DT_RELA, c.DT_INIT, c.DT_FINI, c.DT_REL, c.DT_JMPREL, c.DT_INIT_ARRAY, c.DT_FINI_ARRAY}
)
_ENCODING: Final = 32
_OS_RANGE: Final = 0x60000000
_ADDRESS_RANGE: Final = range(0x6FFFFE00, 0x6FFFFF00)
#: Elf64_Verdef and Elf64_Verneed: the format of the number of auxiliary entries, the distance to the first one and that
#: to the next version; the entry's size, that of an auxiliary entry, and the offset in this of the distance to the next
#: one (LSB, "Symbol Versioning").
_VERSIONS: Final = {c.DT_VERDEF: ("6xH4xII", 20, 8, 4), c.DT_VERNEED: ("2xH4xII", 16, 16, 12)}
_VERSION_COUNTS: Final = {c.DT_VERDEF: c.DT_VERDEFNUM, c.DT_VERNEED: c.DT_VERNEEDNUM}


def is_pointer(tag: int) -> bool:
    """Return whether the value of a dynamic entry is an address."""
    is_even = _ENCODING <= tag < _OS_RANGE and tag % 2 == 0
    return tag in _POINTERS or tag in BY_CONTENT or is_even or tag in _ADDRESS_RANGE


def extent_of(view: FileView, tag: int) -> Span:
    """Return the addresses of a table. Raises `EmbedError` where it is not mapped, or does not tell how large it is."""
    # Loaders store an entry over the one before with its tag.
    entries = dict(view.dynamic)
    start = entries[tag]
    if tag == c.DT_STRTAB:
        size = entries.get(c.DT_STRSZ, 0)
    elif tag == c.DT_SYMTAB:
        size = SYMBOL_SIZE * _symbol_count(view, entries)
    elif tag == c.DT_VERSYM:
        size = 2 * _symbol_count(view, entries)
    elif tag == c.DT_HASH:
        size = _hash(view, start)[0]
    elif tag == c.DT_GNU_HASH:
        size = _gnu_hash(view, start)[0]
    else:
        size = max(_version_ends(view, tag, start, entries.get(_VERSION_COUNTS[tag], 0)), default=start) - start
    return Span(start, start + size)


def _symbol_count(view: FileView, entries: dict[int, int]) -> int:
    """Return how many symbols the loader can find, by name in hash tables, or by number in relocations."""
    counts = [0]
    if c.DT_HASH in entries:
        counts.append(_hash(view, entries[c.DT_HASH])[1])
    if c.DT_GNU_HASH in entries:
        counts.append(_gnu_hash(view, entries[c.DT_GNU_HASH])[1])
    for tag, size_tag in ((c.DT_RELA, c.DT_RELASZ), (c.DT_JMPREL, c.DT_PLTRELSZ)):
        start, size = entries.get(tag, 0), entries.get(size_tag, 0) // RELA_SIZE * RELA_SIZE
        words = words_of(view.memory_at(start, start + size), view.order, 3) if start and size else ()
        counts.append((max(words[1::3], default=-1) >> 32) + 1)
    return max(counts)


def _hash(view: FileView, start: int) -> tuple[int, int]:
    """Return the size of a DT_HASH table, and the number of symbols. On s390x, its words have 8 bytes, lld's have 4."""
    is_long = view.header.e_machine == "EM_S390" and view.memory_at(start, start + 4) == bytes(4)
    word = struct.Struct(view.order + ("QQ" if is_long else "II"))
    bucket_count, chain_count = word.unpack(view.memory_at(start, start + word.size))
    return word.size // 2 * (2 + bucket_count + chain_count), chain_count


def _gnu_hash(view: FileView, start: int) -> tuple[int, int]:
    """Return the size of a DT_GNU_HASH table, and the number of symbols: the last chain ends with an odd hash."""
    header = view.memory_at(start, start + 16)
    bucket_count, first_symbol, bloom_count, _ = struct.unpack(view.order + "4I", header)
    buckets_start = start + 16 + 8 * bloom_count
    chains_start = buckets_start + 4 * bucket_count
    buckets = struct.iter_unpack(view.order + "I", view.memory_at(buckets_start, chains_start))
    last = max((number for (number,) in buckets), default=0)
    if last < first_symbol:
        return chains_start - start, first_symbol
    while True:
        at = chains_start + 4 * (last - first_symbol)
        (value,) = struct.unpack(view.order + "I", view.memory_at(at, at + 4))
        last += 1
        if value & 1:
            return at + 4 - start, last


def _version_ends(view: FileView, tag: int, start: int, count: int) -> Iterator[int]:
    """Yield the ends of the entries of a table of versions, and of their auxiliary entries."""
    form, size, aux_size, next_at = _VERSIONS[tag]
    entry, word = struct.Struct(view.order + form), struct.Struct(view.order + "I")
    for _ in range(count):
        aux_count, first_delta, next_delta = entry.unpack(view.memory_at(start, start + entry.size))
        yield start + size
        at = start + first_delta
        for _ in range(aux_count):
            yield at + aux_size
            (delta,) = word.unpack(view.memory_at(at + next_at, at + next_at + 4))
            if not delta:
                break
            at += delta
        if not next_delta:
            break
        start += next_delta
