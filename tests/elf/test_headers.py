# SPDX-License-Identifier: Apache-2.0
"""ELF headers: files that are refused, tables that leave the file, numbers that do not fit their fields, names."""

import re

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import StringTable
from cfi2sframe.errors import ElfError
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.images import OBJECT_SECTIONS, an_object, linked


def with_header(**fields: int) -> bytes:
    """Return a linked file with other fields of its ELF header."""
    file = File(linked())
    file.header.set(**fields)
    return bytes(file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "not an ELF file") for data in (b"", b"\x7f", b"\x7fEL", b"text", bytes(64))),
        *((an_object()[:n], f"truncated: the ELF header needs 64 bytes, the file has {n}") for n in (4, 5, 6, 32, 63)),
        (b"\x7fELF\1" + an_object()[5:], "not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only"),
        (b"\x7fELF\2\3" + an_object()[6:], "unknown byte order 3 in the ELF header"),
        (with_header(type=4), "a core dump, which has no CFI of its own; cfi2sframe trace prints its stacks"),
        (with_header(type=0), "ELF type 0 is neither an object, an executable nor a library"),
    ],
)
def test_files_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ElfError) as caught:
        load(data)
    assert str(caught.value) == f"<bytes>: {message}"


@pytest.mark.parametrize(
    ("machine", "little_endian", "name"),
    [
        (243, True, "EM_RISCV (little-endian)"),
        (21, False, "EM_PPC64 (big-endian)"),
        (c.EM_X86_64, False, "EM_X86_64 (big-endian)"),
        (c.EM_S390, True, "EM_S390 (little-endian)"),
        (0xFFEE, True, "ELF machine 65518 (little-endian)"),
    ],
)
def test_other_machines(machine: int, little_endian: bool, name: str) -> None:  # noqa: FBT001
    with pytest.raises(ElfError, match=f"{re.escape(f'SFrame is not defined for {name}')}$"):
        load(asm.elf_file(machine, OBJECT_SECTIONS, little_endian=little_endian))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shentsize": 40}, "section headers of 40 bytes, not 64"),
        ({"shoff": 1 << 20}, "section headers at 0x100000 extend past the end of the file"),
        ({"shoff": (1 << 64) - 1}, "extend past the end of the file"),
        ({"shnum": 0xFE00}, "65024 section headers"),
        ({"phentsize": 32}, "program headers of 32 bytes, not 56"),
        ({"phoff": 1 << 20}, "2 program headers at 0x100000 extend past the end of the file"),
        ({"phnum": 0xFFFE}, "65534 program headers"),
    ],
)
def test_tables_that_leave_the_file(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ElfError, match=message):
        load(with_header(**fields))


def test_section_header_count_and_names_in_the_null_section() -> None:
    """gABI, "ELF Header": e_shnum 0 and e_shstrndx SHN_XINDEX point to fields of the null section."""
    file = File(linked())
    file.section(0).set(size=file.header.shnum, link=file.header.shstrndx)
    file.header.set(shnum=0, shstrndx=0xFFFF)
    assert [s.name for s in load(bytes(file)).sections] == [s.name for s in load(linked()).sections]
    file.section(0).size = 1 << 40
    with pytest.raises(ElfError, match=f"{1 << 40} section headers"):
        load(bytes(file))


@pytest.mark.parametrize(
    ("offset", "name"), [(0, "abc"), (1, "bc"), (3, ""), (4, "d\\xff"), (7, "tail"), (11, ""), (1 << 31, "")]
)
def test_strings(offset: int, name: str) -> None:
    """The last may have no end, bytes that are not UTF-8 are escaped, and outside of the table names are empty."""
    assert StringTable(b"abc\0d\xff\0tail").at(offset) == name
