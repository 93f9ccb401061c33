# SPDX-License-Identifier: Apache-2.0
"""The dynamic linker's tables, found as the dynamic linker finds them: through PT_DYNAMIC, without section headers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.headers import DYNAMIC_ENTRY_SIZE, SYMBOL_SIZE
from cfi2sframe.elf.ranges import Span
from cfi2sframe.rewrite.reread.view import Loads

if TYPE_CHECKING:
    from cfi2sframe.rewrite.reread.view import FileView

#: Tags of the tables that may move, each as a whole.
MOVABLE_TAGS: Final = frozenset(
    {c.DT_HASH, c.DT_GNU_HASH, c.DT_STRTAB, c.DT_SYMTAB, c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED}
)
#: Of a record of DT_VERDEF or DT_VERNEED: its size; the offsets of the count of its parts, of the distance to the first
#: part, and of the distance to the next record. Of a part: its size; the offset of the distance to the next part.
_VERSIONS: Final = {c.DT_VERDEF: (20, 6, 12, 16, 8, 4), c.DT_VERNEED: (16, 2, 8, 12, 16, 12)}
#: The most parts of all records: they may overlap, so the file's size does not bound their number.
_MAX_VERSION_COUNT: Final = 1 << 16
_COUNT_TAGS: Final = {c.DT_VERDEF: c.DT_VERDEFNUM, c.DT_VERNEED: c.DT_VERNEEDNUM}


class Dynamic:
    """The entries of PT_DYNAMIC as (tag, value), up to DT_NULL; none where there is no such segment."""

    def __init__(self, view: FileView) -> None:
        self.view = view
        segment = next((s for s in view.segments if s.type == c.PT_DYNAMIC), None)
        self.place = Span(0, 0)
        self.entries: list[tuple[int, int]] = []
        if segment is not None:
            size = segment.file_size - segment.file_size % DYNAMIC_ENTRY_SIZE
            start = segment.file_offset
            self.place = Span(start, start + size)
            for tag, value in struct.iter_unpack(view.order + "QQ", view.bytes_of(self.place)):
                self.entries.append((tag, value))
                if tag == c.DT_NULL:
                    break
        self._values = dict(reversed(self.entries))
        self._loads = Loads(view)

    def value(self, tag: int) -> int | None:
        """Return the first value of a tag, None without one."""
        return self._values.get(tag)

    def read(self, vaddr: int, size: int) -> bytes:
        """Return bytes at a virtual address. Raises `ValueError` when no segment has them all in the file."""
        start = self._loads.file_offset_of(vaddr, size)
        if start is None:
            raise ValueError("no segment holds the bytes")
        return self.view.bytes_of(Span(start, start + size))

    def table_size(self, tag: int) -> int:
        """Return the size of a tag's table in bytes, derived from its contents as its readers do.

        Raises `ValueError` when it cannot be derived.
        """
        vaddr = self.value(tag)
        if vaddr is None:
            raise ValueError("no such table")
        if tag == c.DT_STRTAB:
            return self.value(c.DT_STRSZ) or 0
        if tag == c.DT_HASH:
            bucket_count, chain_count = self._words(vaddr, 0, 2)
            return self._hash_unit * (2 + bucket_count + chain_count)
        if tag == c.DT_GNU_HASH:
            return self._gnu_hash(vaddr)[0]
        if tag in (c.DT_SYMTAB, c.DT_VERSYM):
            return self.symbol_count() * (SYMBOL_SIZE if tag == c.DT_SYMTAB else 2)
        return self._versions_size(tag, vaddr)

    def symbol_count(self) -> int:
        """Return how many dynamic symbols a hash table covers. Raises `ValueError` when there is no hash table."""
        if (vaddr := self.value(c.DT_HASH)) is not None:
            return self._words(vaddr, 1, 1)[0]
        if (vaddr := self.value(c.DT_GNU_HASH)) is not None:
            return self._gnu_hash(vaddr)[1]
        raise ValueError("no hash table")

    @property
    def _hash_unit(self) -> int:
        return 8 if self.view.header.machine == c.EM_S390 else 4

    def _words(self, vaddr: int, first: int, count: int) -> tuple[int, ...]:
        """Return words of a DT_HASH table, which on s390x have eight bytes."""
        data = self.read(vaddr + first * self._hash_unit, count * self._hash_unit)
        return struct.unpack(f"{self.view.order}{count}{'Q' if self._hash_unit == 8 else 'I'}", data)

    def _gnu_hash(self, vaddr: int) -> tuple[int, int]:
        """Return the size of a DT_GNU_HASH table in bytes, and the least number of symbols."""
        order = self.view.order
        bucket_count, first, bloom_size, _ = struct.unpack(order + "4I", self.read(vaddr, 16))
        buckets_at = vaddr + 16 + 8 * bloom_size
        buckets = struct.unpack(f"{order}{bucket_count}I", self.read(buckets_at, 4 * bucket_count))
        chains_at = buckets_at + 4 * bucket_count
        last = max(buckets, default=0)
        if last < first:
            return chains_at - vaddr, first
        while not self.read(chains_at + 4 * (last - first), 4)[0 if order == "<" else 3] & 1:
            last += 1
        return chains_at + 4 * (last + 1 - first) - vaddr, last + 1

    def _versions_size(self, tag: int, vaddr: int) -> int:
        size, count_at, parts_at, next_at, part_size, part_next_at = _VERSIONS[tag]
        order = self.view.order
        end, position, part_count = 0, 0, 0
        for _ in range(self.value(_COUNT_TAGS[tag]) or 0):
            record = self.read(vaddr + position, size)
            end = max(end, position + size)
            part_count += struct.unpack_from(order + "H", record, count_at)[0]
            if part_count > _MAX_VERSION_COUNT:
                raise ValueError("too many versions")
            part = position + struct.unpack_from(order + "I", record, parts_at)[0]
            for _ in range(struct.unpack_from(order + "H", record, count_at)[0]):
                content = self.read(vaddr + part, part_size)
                end = max(end, part + part_size)
                part += (following := struct.unpack_from(order + "I", content, part_next_at)[0])
                if not following:
                    break
            position += (following := struct.unpack_from(order + "I", record, next_at)[0])
            if not following:
                break
        return end
