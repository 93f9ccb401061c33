# SPDX-License-Identifier: Apache-2.0
"""A linked file as pyelftools reads it, for the comparison after rewriting.

Headers are read from slices of their size, by pyelftools' structs only: its objects follow whatever damaged files say.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData
from cfi2sframe.errors import EmbedError
from cfi2sframe.range_map import Span, common, without

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ByteOrder

# pyelftools has no names of these yet.
SFRAME_TYPES = {0x6474E554, "PT_GNU_SFRAME", 0x6FFFFFF4, "SHT_GNU_SFRAME"}
_FILE_HEADER_SIZE = 64
#: The most characters of a name in messages.
_MAX_NAME_SIZE = 80


class FileView:
    """A file as pyelftools reads it."""

    def __init__(self, data: FileData) -> None:
        from elftools.common.utils import struct_parse

        ident = bytes(data[:_FILE_HEADER_SIZE])
        expect(ident[:5] == b"\x7fELF\2" and ident[5] in (1, 2), "it is no ELF64 file")
        self.data = data
        #: The byte order as `struct` spells it.
        self.order: ByteOrder = "<" if ident[5] == 1 else ">"
        structs = _structs_of(self.order)
        self.header = struct_parse(structs.Elf_Ehdr, BytesIO(ident))
        self.segments, self.sections = (
            [dict(struct_parse(kind, BytesIO(item))) for item in self._items(table, kind.sizeof())]
            for kind, table in ((structs.Elf_Phdr, "ph"), (structs.Elf_Shdr, "sh"))
        )
        names = self.bytes_of(span_of(self.sections[self.header.e_shstrndx])) if self.sections else b""
        for section in self.sections:
            start = section["sh_name"]
            expect(start < len(names), "a section name is outside its table")
            # Many sections may have one long name.
            section["name"] = names[start : start + _MAX_NAME_SIZE].split(b"\0")[0].decode("latin-1")
        self.dynamic_span = next((span_of(s) for s in self.segments if s["p_type"] == "PT_DYNAMIC"), Span(0, 0))
        self.dynamic: list[tuple[int, int]] = []
        content = self.bytes_of(self.dynamic_span)
        for entry in struct.iter_unpack(self.order + "QQ", content[: len(content) // 16 * 16]):
            self.dynamic.append((entry[0], entry[1]))
            if not entry[0]:
                break
        self.sframe = [number for number, section in enumerate(self.sections) if is_sframe(section)]
        self.loads = [s for s in self.segments if s["p_type"] == "PT_LOAD"]
        self._by_vaddr = sorted(self.loads, key=lambda load: load["p_vaddr"])
        self.is_static = self.header.e_type == "ET_EXEC" and not any(
            s["p_type"] in ("PT_INTERP", "PT_DYNAMIC") for s in self.segments
        )

    def _items(self, table: str, size: int) -> list[bytes]:
        """Return the bytes of each header of a table."""
        span = self.table(table)
        expect(span.end <= len(self.data), "a table of headers extends past the end of the file")
        expect(span.start == span.end or self.header[f"e_{table}entsize"] == size, "headers of another size")
        content = self.bytes_of(span)
        return [content[at : at + size] for at in range(0, len(content), size)]

    def table(self, kind: str) -> Span:
        """Return the file offsets of the program headers ("ph") or section headers ("sh")."""
        start, count, size = (self.header[f"e_{kind}{field}"] for field in ("off", "num", "entsize"))
        return Span(start, start + count * size) if start else Span(0, 0)

    def bytes_of(self, span: Span) -> bytes:
        """Return the bytes of a span; fewer where the file ends."""
        return bytes(self.data[span.start : span.end])

    @property
    def has_symbols(self) -> bool:
        """True if the dynamic loader finds symbols."""
        return any(tag == c.DT_SYMTAB for tag, _ in self.dynamic)

    def outside_sections(self, spans: Iterable[Span]) -> list[Span]:
        """Return the file offsets outside of sections; none without section headers, since it is not known then."""
        return without(spans, map(span_of, self.sections)) if self.sections else []

    def offset_of(self, vaddr: int, size: int = 1) -> int | None:
        """Return the file offset of bytes at an address that one PT_LOAD maps; None if none does."""
        number = bisect_right(self._by_vaddr, vaddr, key=lambda load: load["p_vaddr"]) - 1
        load = self._by_vaddr[number] if number >= 0 else None
        if load is None or vaddr + size > load["p_vaddr"] + load["p_filesz"]:
            return None
        return int(vaddr - load["p_vaddr"] + load["p_offset"])

    def memory_at(self, start: int, end: int) -> bytes:
        """Return the bytes at addresses of one PT_LOAD. Raises `EmbedError` where they are not in the file."""
        offset = self.offset_of(start, end - start)
        if offset is None:
            raise failure(f"0x{start:x} is not mapped")
        return self.bytes_of(Span(offset, offset + end - start))

    def maps(self, vaddr: int, offset: int, size: int) -> bool:
        """Return whether a PT_LOAD maps the bytes at a file offset to an address."""
        return self.offset_of(vaddr, size) == offset

    def addresses_of(self, span: Span) -> list[Span]:
        """Return the addresses at which a span of the file is mapped."""
        return [
            Span(part.start - load["p_offset"] + load["p_vaddr"], part.end - load["p_offset"] + load["p_vaddr"])
            for load in self.loads
            for part in common([span], [span_of(load)])
        ]

    def offsets_of(self, spans: Iterable[Span]) -> list[Span]:
        """Return the file offsets of addresses, as far as they are mapped."""
        return [
            Span(part.start - load["p_vaddr"] + load["p_offset"], part.end - load["p_vaddr"] + load["p_offset"])
            for load in self.loads
            for part in common(spans, [Span(load["p_vaddr"], load["p_vaddr"] + load["p_filesz"])])
        ]


@cache
def _structs_of(order: "ByteOrder") -> Any:  # noqa: ANN401 - pyelftools has no types
    """Return pyelftools' structs of ELF64; cached, since building them takes longer than parsing a small file."""
    from elftools.elf.structs import ELFStructs

    structs = ELFStructs(little_endian=order == "<", elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    return structs


def span_of(header: dict[str, Any]) -> Span:
    """Return the file offsets of a segment's or section's bytes."""
    if "p_offset" in header:
        return Span(header["p_offset"], header["p_offset"] + header["p_filesz"])
    size = 0 if header["sh_type"] in ("SHT_NOBITS", "SHT_NULL") else header["sh_size"]
    return Span(header["sh_offset"], header["sh_offset"] + size)


def is_sframe(header: dict[str, Any]) -> bool:
    """Return whether a header is that of an SFrame section or of its segment."""
    kind = header.get("p_type") or header["sh_type"]
    return kind in SFRAME_TYPES or (kind == "SHT_PROGBITS" and header["name"] == ".sframe")


def expect(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise `EmbedError` unless a condition holds."""
    if not condition:
        raise failure(message)


def failure(message: str) -> EmbedError:
    """Return the error for a rewritten file."""
    return EmbedError(f"the rewritten file fails its re-read: {message}")


@contextmanager
def parsing() -> Iterator[None]:
    """Turn the exceptions that damaged files cause into `EmbedError`."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error, ELFError, ConstructError) as error:
        raise failure(f"it does not parse: {error!r}") from error
