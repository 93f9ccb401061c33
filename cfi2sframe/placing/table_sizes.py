# SPDX-License-Identifier: Apache-2.0
"""The sizes of the dynamic linker's tables, derived from their contents as their readers do.

Section headers may tell less than a table has. A table that moves has to be moved as a whole.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf import constants as c

if TYPE_CHECKING:
    from collections.abc import Callable

#: Of a record of DT_VERDEF or DT_VERNEED: the tag of its count; its size; the offsets of the count of its parts, of the
#: distance to the first part, and of the distance to the next record. Of a part: its size; the offset of the distance
#: to the next part.
_VERSIONS: Final = {
    c.DT_VERDEF: (c.DT_VERDEFNUM, 20, 6, 12, 16, 8, 4),
    c.DT_VERNEED: (c.DT_VERNEEDNUM, 16, 2, 8, 12, 16, 12),
}
#: The most parts of all records: they may overlap, so the file's size does not bound their number.
_MAX_VERSION_COUNT: Final = 1 << 16
_SYMBOL_SIZE: Final = 24


class Tables(NamedTuple):
    """What the dynamic entries lead to: `values` of tags, `read(vaddr, size)`, and `order` as `struct` spells it.

    `hash_unit` are the bytes of a word of DT_HASH, which on s390x has eight. `read` raises `ValueError` where nothing
    is mapped.
    """

    values: dict[int, int]
    read: Callable[[int, int], bytes]
    order: str
    hash_unit: int

    def size(self, tag: int) -> int:
        """Return the size of a tag's table in bytes. Raises `ValueError` when it cannot be derived."""
        vaddr = self.values[tag]
        if tag == c.DT_STRTAB:
            return self.values.get(c.DT_STRSZ, 0)
        if tag == c.DT_HASH:
            return self.hash_unit * (2 + sum(self._hash_counts(vaddr)))
        if tag == c.DT_GNU_HASH:
            return self._gnu_hash(vaddr)[0]
        if tag in (c.DT_SYMTAB, c.DT_VERSYM):
            return self._symbol_count() * (_SYMBOL_SIZE if tag == c.DT_SYMTAB else 2)
        return self._versions_size(tag, vaddr)

    def _symbol_count(self) -> int:
        """Return how many dynamic symbols a hash table covers."""
        if c.DT_HASH in self.values:
            return self._hash_counts(self.values[c.DT_HASH])[1]
        if c.DT_GNU_HASH in self.values:
            return self._gnu_hash(self.values[c.DT_GNU_HASH])[1]
        raise ValueError("no hash table")

    def _hash_counts(self, vaddr: int) -> tuple[int, int]:
        """Return the numbers of buckets and of symbols of a DT_HASH table."""
        content = self.read(vaddr, 2 * self.hash_unit)
        buckets, symbols = struct.unpack(self.order + ("QQ" if self.hash_unit == 8 else "II"), content)
        return buckets, symbols

    def _gnu_hash(self, vaddr: int) -> tuple[int, int]:
        """Return the size of a DT_GNU_HASH table in bytes, and the least number of symbols."""
        bucket_count, first, bloom_size, _ = struct.unpack(self.order + "4I", self.read(vaddr, 16))
        buckets_at = vaddr + 16 + 8 * bloom_size
        buckets = struct.unpack(f"{self.order}{bucket_count}I", self.read(buckets_at, 4 * bucket_count))
        chains_at, last = buckets_at + 4 * bucket_count, max(buckets, default=0)
        if last < first:
            return chains_at - vaddr, first
        while not self.read(chains_at + 4 * (last - first), 4)[0 if self.order == "<" else 3] & 1:
            last += 1
        return chains_at + 4 * (last + 1 - first) - vaddr, last + 1

    def _versions_size(self, tag: int, vaddr: int) -> int:
        count_tag, size, count_at, parts_at, next_at, part_size, part_next_at = _VERSIONS[tag]
        end, position, left = 0, 0, _MAX_VERSION_COUNT
        for _ in range(self.values.get(count_tag, 0)):
            record = self.read(vaddr + position, size)
            end = max(end, position + size)
            part = position + struct.unpack_from(self.order + "I", record, parts_at)[0]
            for _ in range(struct.unpack_from(self.order + "H", record, count_at)[0]):
                content = self.read(vaddr + part, part_size)
                end, left = max(end, part + part_size), left - 1
                if not left:
                    raise ValueError("too many versions")
                part += (following := struct.unpack_from(self.order + "I", content, part_next_at)[0])
                if not following:
                    break
            position += (following := struct.unpack_from(self.order + "I", record, next_at)[0])
            if not following:
                break
        return end
