# SPDX-License-Identifier: Apache-2.0
"""Reading rewritten files with another reader than the package's, and starting tools."""

import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TESTDATA = Path(__file__).resolve().parents[3] / "testdata"
GOLDEN = TESTDATA / "golden"
GOLDEN_NAMES = sorted(path.name for path in GOLDEN.glob("*.o"))

SHT_GNU_SFRAME = 0x6FFFFFF4
SHT_PROGBITS, SHT_RELA = 1, 4
#: The fields of a section header after its type.
FIELDS = ("flags", "addr", "offset", "size", "link", "info", "addralign", "entsize")
FILE_HEADER_SIZE, SECTION_HEADER_SIZE = 64, 64


class Header(NamedTuple):
    """A section header, with its name and its bytes."""

    name: str
    type: int
    flags: int
    vaddr: int
    file_offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int
    content: bytes


class Rela(NamedTuple):
    """A relocation, its symbol by index."""

    offset: int
    type: int
    symbol: int
    addend: int


def headers_of(data: bytes) -> list[Header]:
    """Read the section headers with pyelftools."""
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(data))
    found: list[Header] = []
    for section in file.iter_sections():
        # pyelftools gives enumerations by name and the names' numbers not at all.
        position = file["e_shoff"] + len(found) * SECTION_HEADER_SIZE
        kind = struct.unpack_from("<I" if file.little_endian else ">I", data, position + 4)[0]
        values = [section[f"sh_{field}"] for field in FIELDS]
        start, size = section["sh_offset"], section["sh_size"]
        content = b"" if section["sh_type"] in ("SHT_NOBITS", "SHT_NULL") else data[start : start + size]
        found.append(Header._make((section.name, kind, *values, content)))
    return found


def named(headers: Sequence[Header], name: str) -> Header:
    """Return the one section of a name."""
    matches = [header for header in headers if header.name == name]
    assert len(matches) == 1, f"{len(matches)} sections {name}"
    return matches[0]


def relas_of(data: bytes, name: str) -> list[Rela]:
    """Read the relocations of a .rela section."""
    order = "<" if data[5] == 1 else ">"
    rows = struct.iter_unpack(order + "QIIq", named(headers_of(data), name).content)
    # r_info is one number of 64 bits: symbol in its upper half, so the halves trade places with the byte order.
    if order == "<":
        return [Rela(offset, low, high, addend) for offset, low, high, addend in rows]
    return [Rela(offset, low, high, addend) for offset, high, low, addend in rows]


def assert_kept(old: bytes, new: bytes) -> None:
    """Every old section keeps its index, header and bytes, and the file its bytes after the header."""
    assert new[FILE_HEADER_SIZE : len(old)] == old[FILE_HEADER_SIZE:]
    before, after = headers_of(old), headers_of(new)
    assert len(after) >= len(before)
    for was, now in zip(before, after, strict=False):
        if was.name == ".shstrtab":
            assert now.content.startswith(was.content)
            assert now._replace(size=0, file_offset=0, content=b"") == was._replace(size=0, file_offset=0, content=b"")
        else:
            assert now == was
