# SPDX-License-Identifier: Apache-2.0
"""A linked file as pyelftools reads it, for the comparison after rewriting.

Headers are read from slices of their size, by pyelftools' structs only: its objects follow whatever damaged files say.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.headers import SYMBOL_SIZE
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder

# pyelftools has no names of these yet.
SFRAME_TYPES = {0x6474E554, "PT_GNU_SFRAME", 0x6FFFFFF4, "SHT_GNU_SFRAME"}
_FILE_HEADER_SIZE = 64
#: Characters of a name that messages have.
_MAX_NAME_SIZE = 80
#: Of a record of DT_VERDEF or DT_VERNEED: the tag of its count; its size; the offsets of the count of its parts, of the
#: distance to the first part, and of the distance to the next record. Of a part: its size; the offset of the distance
#: to the next part.
_VERSIONS = {
    c.DT_VERDEF: (c.DT_VERDEFNUM, 20, 6, 12, 16, 8, 4),
    c.DT_VERNEED: (c.DT_VERNEEDNUM, 16, 2, 8, 12, 16, 12),
}
#: The most parts of all records: they may overlap, so the file's size does not bound their number.
_MAX_VERSION_COUNT = 1 << 16


class FileView:
    """A file as pyelftools reads it."""

    def __init__(self, data: FileData) -> None:
        from elftools.common.utils import struct_parse
        from elftools.elf.structs import ELFStructs

        ident = bytes(data[:_FILE_HEADER_SIZE])
        expect(ident[:5] == b"\x7fELF\2" and ident[5] in (1, 2), "it is no ELF64 file")
        self.data, self.order = data, "little" if ident[5] == 1 else "big"
        structs = ELFStructs(little_endian=ident[5] == 1, elfclass=64)
        structs.create_basic_structs()
        structs.create_advanced_structs()
        self.header = struct_parse(structs.Elf_Ehdr, BytesIO(ident))
        self.segments, self.sections = (
            [dict(struct_parse(kind, BytesIO(item))) for item in self._items(table, kind.sizeof())]
            for kind, table in ((structs.Elf_Phdr, "ph"), (structs.Elf_Shdr, "sh"))
        )
        names = self.bytes_of(span_of(self.sections[self.header.e_shstrndx])) if self.sections else b""
        for section in self.sections:
            start = section["sh_name"]
            expect(start < len(names), "a section name leaves its table")
            # Many sections may have one long name.
            section["name"] = names[start : start + _MAX_NAME_SIZE].split(b"\0")[0].decode("latin-1")
        self.dynamic_span = next((span_of(s) for s in self.segments if s["p_type"] == "PT_DYNAMIC"), Span(0, 0))
        self.dynamic: list[tuple[int, int]] = []
        content = self.bytes_of(self.dynamic_span)
        for entry in struct.iter_unpack(self.unpacks + "QQ", content[: len(content) // 16 * 16]):
            self.dynamic.append((entry[0], entry[1]))
            if not entry[0]:
                break
        #: The value of each tag: the first, where a tag repeats.
        self.tags = dict(reversed(self.dynamic))
        #: The bytes of a word of DT_HASH.
        self.hash_unit = 8 if self.header.e_machine == "EM_S390" else 4
        self.sframe = [number for number, section in enumerate(self.sections) if is_sframe(section)]
        self.loads = [s for s in self.segments if s["p_type"] == "PT_LOAD"]
        self._by_vaddr = sorted(self.loads, key=lambda load: load["p_vaddr"])
        self.is_static = self.header.e_type == "ET_EXEC" and not any(
            s["p_type"] in ("PT_INTERP", "PT_DYNAMIC") for s in self.segments
        )

    @property
    def may_be_interpreter(self) -> bool:
        """Whether a library has an entry, and needs no other."""
        tags = {tag for tag, _ in self.dynamic}
        is_library = self.header.e_type == "ET_DYN" and not any(s["p_type"] == "PT_INTERP" for s in self.segments)
        return is_library and bool(self.header.e_entry) and c.DT_NEEDED not in tags

    @property
    def unpacks(self) -> ByteOrder:
        """The byte order as `struct` spells it."""
        return "<" if self.order == "little" else ">"

    def _items(self, table: str, size: int) -> list[bytes]:
        """Return the bytes of each header of a table."""
        span = self.table(table)
        expect(span.end <= len(self.data), "a table of headers leaves the file")
        expect(span.start == span.end or self.header[f"e_{table}entsize"] == size, "headers of another size")
        content = self.bytes_of(span)
        return [content[at : at + size] for at in range(0, len(content), size)]

    def table(self, kind: str) -> Span:
        """Return where the program headers ("ph") or section headers ("sh") are."""
        start, count, size = (self.header[f"e_{kind}{field}"] for field in ("off", "num", "entsize"))
        return Span(start, start + count * size) if start else Span(0, 0)

    def bytes_of(self, span: Span) -> bytes:
        """Return the bytes of a span; fewer where the file ends."""
        return bytes(self.data[span.start : span.end])

    def file_offset_of(self, vaddr: int, size: int) -> int:
        """Return where bytes at an address are in the file. Raises `ValueError` when no PT_LOAD has them all."""
        number = bisect_right(self._by_vaddr, vaddr, key=lambda load: load["p_vaddr"]) - 1
        load = self._by_vaddr[max(number, 0)]
        if load["p_vaddr"] <= vaddr and vaddr + size <= load["p_vaddr"] + load["p_filesz"]:
            return int(vaddr - load["p_vaddr"] + load["p_offset"])
        raise ValueError(f"no segment holds 0x{vaddr:x}")

    def maps(self, vaddr: int, offset: int, size: int) -> bool:
        """Whether a PT_LOAD maps these bytes there."""
        try:
            return self.file_offset_of(vaddr, size) == offset
        except ValueError:
            return False

    def bytes_at(self, vaddr: int, size: int) -> bytes:
        """Return the bytes at an address. Raises as `file_offset_of` does."""
        start = self.file_offset_of(vaddr, size)
        return self.bytes_of(Span(start, start + size))

    def table_size(self, tag: int) -> int:
        """Return the size in bytes of the dynamic linker's table of a tag, from its contents, as its readers do.

        Section headers may tell less than a table has. Raises `ValueError` when it cannot be derived.
        """
        vaddr = self.tags[tag]
        if tag == c.DT_STRTAB:
            return self.tags.get(c.DT_STRSZ, 0)
        if tag == c.DT_HASH:
            return self.hash_unit * (2 + sum(self._hash_counts(vaddr)))
        if tag == c.DT_GNU_HASH:
            return self._gnu_hash(vaddr)[0]
        if tag in (c.DT_SYMTAB, c.DT_VERSYM):
            return self._symbol_count() * (SYMBOL_SIZE if tag == c.DT_SYMTAB else 2)
        return self._versions_size(tag, vaddr)

    def _symbol_count(self) -> int:
        """Return how many dynamic symbols a hash table covers."""
        if c.DT_HASH in self.tags:
            return self._hash_counts(self.tags[c.DT_HASH])[1]
        if c.DT_GNU_HASH in self.tags:
            return self._gnu_hash(self.tags[c.DT_GNU_HASH])[1]
        raise ValueError("no hash table")

    def _hash_counts(self, vaddr: int) -> tuple[int, int]:
        """Return the numbers of buckets and of symbols of a DT_HASH table."""
        content = self.bytes_at(vaddr, 2 * self.hash_unit)
        buckets, symbols = struct.unpack(self.unpacks + ("QQ" if self.hash_unit == 8 else "II"), content)
        return buckets, symbols

    def _gnu_hash(self, vaddr: int) -> tuple[int, int]:
        """Return the size of a DT_GNU_HASH table in bytes, and the least number of symbols."""
        bucket_count, first, bloom_size, _ = struct.unpack(self.unpacks + "4I", self.bytes_at(vaddr, 16))
        buckets_at = vaddr + 16 + 8 * bloom_size
        buckets = struct.unpack(f"{self.unpacks}{bucket_count}I", self.bytes_at(buckets_at, 4 * bucket_count))
        chains_at, last = buckets_at + 4 * bucket_count, max(buckets, default=0)
        if last < first:
            return chains_at - vaddr, first
        while not self.bytes_at(chains_at + 4 * (last - first), 4)[0 if self.unpacks == "<" else 3] & 1:
            last += 1
        return chains_at + 4 * (last + 1 - first) - vaddr, last + 1

    def _versions_size(self, tag: int, vaddr: int) -> int:
        count_tag, size, count_at, parts_at, next_at, part_size, part_next_at = _VERSIONS[tag]
        end, position, left = 0, 0, _MAX_VERSION_COUNT
        for _ in range(self.tags.get(count_tag, 0)):
            record = self.bytes_at(vaddr + position, size)
            end = max(end, position + size)
            part = position + struct.unpack_from(self.unpacks + "I", record, parts_at)[0]
            for _ in range(struct.unpack_from(self.unpacks + "H", record, count_at)[0]):
                content = self.bytes_at(vaddr + part, part_size)
                end, left = max(end, part + part_size), left - 1
                if not left:
                    raise ValueError("too many versions")
                part += (following := struct.unpack_from(self.unpacks + "I", content, part_next_at)[0])
                if not following:
                    break
            position += (following := struct.unpack_from(self.unpacks + "I", record, next_at)[0])
            if not following:
                break
        return end


def span_of(header: dict[str, Any]) -> Span:
    """Return the file offsets of a segment's or section's bytes."""
    if "p_offset" in header:
        return Span(header["p_offset"], header["p_offset"] + header["p_filesz"])
    size = 0 if header["sh_type"] in ("SHT_NOBITS", "SHT_NULL") else header["sh_size"]
    return Span(header["sh_offset"], header["sh_offset"] + size)


def is_sframe(header: dict[str, Any]) -> bool:
    """Whether a header is that of an SFrame section or of its segment."""
    kind = header.get("p_type") or header["sh_type"]
    return kind in SFRAME_TYPES or (kind == "SHT_PROGBITS" and header["name"] == ".sframe")


def expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise EmbedError(f"the rewritten file fails its re-read: {message}")


@contextmanager
def parsing() -> Iterator[None]:
    """Turn what damaged files raise into `EmbedError`."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error, ELFError, ConstructError) as error:
        raise EmbedError(f"the rewritten file fails its re-read: it does not parse: {error!r}") from error
