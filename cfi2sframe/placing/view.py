# SPDX-License-Identifier: Apache-2.0
"""The headers of a linked file, for the comparison after rewriting.

They are read with fields and numbers of this module's own: what writes files reads them with others. Tests compare them
with pyelftools', which is too slow an import for every run.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.elf.spans import Span
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder

SFRAME_TYPES: Final = {"PT_GNU_SFRAME", "SHT_GNU_SFRAME"}
_FILE_HEADER_SIZE: Final = 64
#: Characters of a name that messages have.
_MAX_NAME_SIZE: Final = 80
#: The headers of ELF64 files (System V gABI, chapters 4 and 5): the form of each, and the names of its fields.
_FILE_HEADER: Final = (
    "16xHHIQQQIHHHHHH",
    (
        "e_type e_machine e_version e_entry e_phoff e_shoff e_flags "
        "e_ehsize e_phentsize e_phnum e_shentsize e_shnum e_shstrndx"
    ),
)
_PROGRAM_HEADER: Final = ("IIQQQQQQ", "p_type p_flags p_offset p_vaddr p_paddr p_filesz p_memsz p_align")
_SECTION_HEADER: Final = (
    "IIQQQQIIQQ",
    "sh_name sh_type sh_flags sh_addr sh_offset sh_size sh_link sh_info sh_addralign sh_entsize",
)
#: The names of types that the comparison knows, or that messages have; others stay numbers.
_NAMES: Final = {
    "e_type": {2: "ET_EXEC"},
    "p_type": {
        0: "PT_NULL",
        1: "PT_LOAD",
        2: "PT_DYNAMIC",
        3: "PT_INTERP",
        4: "PT_NOTE",
        6: "PT_PHDR",
        7: "PT_TLS",
        0x6474E550: "PT_GNU_EH_FRAME",
        0x6474E551: "PT_GNU_STACK",
        0x6474E552: "PT_GNU_RELRO",
        0x6474E553: "PT_GNU_PROPERTY",
        0x6474E554: "PT_GNU_SFRAME",
    },
    "sh_type": {
        0: "SHT_NULL",
        1: "SHT_PROGBITS",
        2: "SHT_SYMTAB",
        4: "SHT_RELA",
        7: "SHT_NOTE",
        8: "SHT_NOBITS",
        9: "SHT_REL",
        11: "SHT_DYNSYM",
        17: "SHT_GROUP",
        18: "SHT_SYMTAB_SHNDX",
        0x6FFFFFF4: "SHT_GNU_SFRAME",
    },
}


class FileView:
    """The headers of a file, as dictionaries of their fields."""

    def __init__(self, data: FileData) -> None:
        ident = bytes(data[:_FILE_HEADER_SIZE])
        expect(ident[:5] == b"\x7fELF\2" and ident[5] in (1, 2), "it is no ELF64 file")
        self.data = data
        #: The byte order as `struct` spells it.
        self.order: ByteOrder = "<" if ident[5] == 1 else ">"
        self.header = self._header(_FILE_HEADER, ident)
        self.segments = self._headers(_PROGRAM_HEADER, "ph")
        self.sections = self._headers(_SECTION_HEADER, "sh")
        names = self.bytes_of(span_of(self.sections[self.header["e_shstrndx"]])) if self.sections else b""
        for section in self.sections:
            start = section["sh_name"]
            expect(start < len(names), "a section name leaves its table")
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
        self.is_static = self.header["e_type"] == "ET_EXEC" and not any(
            s["p_type"] in ("PT_INTERP", "PT_DYNAMIC") for s in self.segments
        )

    def _header(self, kind: tuple[str, str], content: bytes) -> dict[str, Any]:
        """Return a header with the names of its types."""
        form, names = kind
        fields = dict(zip(names.split(), struct.unpack(self.order + form, content), strict=True))
        return {name: _NAMES.get(name, {}).get(value, value) for name, value in fields.items()}

    def _headers(self, kind: tuple[str, str], table: str) -> list[dict[str, Any]]:
        """Return the headers of a table."""
        span, size = self.table(table), struct.calcsize(self.order + kind[0])
        expect(span.end <= len(self.data), "a table of headers leaves the file")
        expect(span.start == span.end or self.header[f"e_{table}entsize"] == size, "headers of another size")
        content = self.bytes_of(span)
        return [self._header(kind, content[at : at + size]) for at in range(0, len(content), size)]

    def table(self, kind: str) -> Span:
        """Return where the program headers ("ph") or section headers ("sh") are."""
        start, count, size = (self.header[f"e_{kind}{field}"] for field in ("off", "num", "entsize"))
        return Span(start, start + count * size) if start else Span(0, 0)

    def bytes_of(self, span: Span) -> bytes:
        """Return the bytes of a span; fewer where the file ends."""
        return bytes(self.data[span.start : span.end])

    def maps(self, vaddr: int, offset: int, size: int) -> bool:
        """Whether a PT_LOAD maps these bytes there."""
        number = bisect_right(self._by_vaddr, vaddr, key=lambda load: load["p_vaddr"]) - 1
        load = self._by_vaddr[max(number, 0)]
        is_inside = load["p_vaddr"] <= vaddr and vaddr + size <= load["p_vaddr"] + load["p_filesz"]
        return bool(is_inside and vaddr - load["p_vaddr"] == offset - load["p_offset"])


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
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        raise EmbedError(f"the rewritten file fails its re-read: it does not parse: {error!r}") from error
