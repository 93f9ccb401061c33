# SPDX-License-Identifier: Apache-2.0
"""Find Go's table of functions in an image, and read its header.

The header (Go 1.18 and later; runtime/symtab.go, `pcHeader`): u32 magic; two zero bytes; u8 the quantum, the unit of
distances between instructions; u8 the size of a pointer; then eight words: the number of functions, the number of
files, the address of the code (0 from Go 1.26 on, where the module's record has it), and the offsets of names,
compilation units, files, values by PC, and functions, in bytes from the table's start.
"""

import struct
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_tables
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import CfiError, UnfitError

#: By magic number: True if a function's record has the field `startLine`.
_MAGICS: Final = {0xFFFFFFF0: False, 0xFFFFFFF1: True}
#: Those of Go 1.2 to 1.17, whose tables have another form.
_OLD_MAGICS: Final = {0xFFFFFFFB: "1.2 to 1.15", 0xFFFFFFFA: "1.16 and 1.17"}
_SECTION_NAMES: Final = (".gopclntab", ".data.rel.ro.gopclntab")
#: A section that only Go programs have, and the one in which the C linker puts the table of a position-independent one.
_GO_SECTION: Final = ".go.buildinfo"
_SHARED_SECTION: Final = ".data.rel.ro"
_TABLE_ALIGNMENT: Final = 32

_POINTER_SIZE: Final = 8
#: The section of the module's record, and words of it: the addresses of the table, of its names, values by PC,
#: functions, and functions again; the number of the functions and their end; the address of the code.
_MODULE_SECTION: Final = ".go.module"
_MODULE_PARTS: Final = (0, 1, 10, 13, 16)
_MODULE_FUNCTION_COUNT: Final = 17
_MODULE_TEXT: Final = 22
_MODULE_WORD_COUNT: Final = 24
_TEXT_OFFSET: Final = 24
HEADER_SIZE: Final = 72


class GoTable(NamedTuple):
    """The bytes of a table from its header on, and the fields of the header.

    The table is at `section_offset` in the section `name`. Function starts count from `text_vaddr`, distances are in
    units of `quantum` bytes. `names_offset`, `values_offset` and `functions_offset` are the offsets in `data` of the
    names, the values by PC, and the functions. `has_start_line`: records of functions have 44 bytes instead of 40.
    """

    name: str
    section_offset: int
    data: bytes
    byte_order: str
    quantum: int
    function_count: int
    text_vaddr: int
    names_offset: int
    values_offset: int
    functions_offset: int
    has_start_line: bool


def find_table(image: ElfImage) -> GoTable | None:
    """Return the table of a linked file; None without one.

    Raises `UnfitError` when it is of an unknown version of Go, `CfiError` when its header is damaged, and `ElfError`
    when its section leaves the file.
    """
    for name in _SECTION_NAMES:
        for section in image.sections_named(name):
            if section.flags & c.SHF_ALLOC and section.size and section.type != c.SHT_NOBITS:
                return _read_header(image, section, 0)
    if any(image.sections_named(_GO_SECTION)):
        for section in image.sections_named(_SHARED_SECTION):
            offset = _find_magic(image, section)
            if offset is not None:
                return _read_header(image, section, offset)
    return None


def _find_magic(image: ElfImage, section: ElfSection) -> int | None:
    """Return the offset of the table in a section with other data, by the first eight bytes of its header."""
    data = image.section_bytes(section)
    quantum = image.arch.instruction_alignment
    for magic in (*_MAGICS, *_OLD_MAGICS):
        wanted = struct.pack(image.byte_order + "I4B", magic, 0, 0, quantum, _POINTER_SIZE)
        offset = data.find(wanted)
        while offset >= 0 and (section.vaddr + offset) % _TABLE_ALIGNMENT:
            offset = data.find(wanted, offset + 1)
        if offset >= 0:
            return offset
    return None


def _read_header(image: ElfImage, section: ElfSection, offset: int) -> GoTable:
    data = image.section_bytes(section)[offset:]
    order = image.byte_order
    if len(data) < HEADER_SIZE:
        raise CfiError("truncated header", section.name, offset)
    magic, zero, quantum, pointer_size = struct.unpack_from(order + "IHBB", data)
    if magic in _OLD_MAGICS:
        raise UnfitError(f"a table of Go {_OLD_MAGICS[magic]}, which is not read", section.name)
    if magic not in _MAGICS:
        raise UnfitError(f"a table of an unknown version of Go (magic number 0x{magic:08x})", section.name)
    if (zero, quantum, pointer_size) != (0, image.arch.instruction_alignment, _POINTER_SIZE):
        raise CfiError("the header is not one of this machine", section.name, offset)
    function_count, _, text_vaddr, names, _, _, values, functions = struct.unpack_from(order + "8Q", data, 8)
    parts = names, values, functions
    if not HEADER_SIZE <= names <= values <= functions <= len(data):
        raise CfiError("an offset in the header is outside the table", section.name, offset)
    if 8 * function_count + 4 > len(data) - functions:
        raise CfiError(f"a table of {function_count:,} functions exceeds the section", section.name, offset)
    table_vaddr = section.vaddr + offset
    text_vaddr = _relocated(image, table_vaddr + _TEXT_OFFSET, text_vaddr)
    if not text_vaddr:
        text_vaddr = _text_of_module(image, table_vaddr, (0, *parts, functions), function_count)
    if image.code_range_of(text_vaddr) is None:
        reason = f"the table does not say where the code is: nothing executable is at 0x{text_vaddr:x}"
        raise UnfitError(reason, section.name)
    return GoTable(section.name, offset, data, order, quantum, function_count, text_vaddr, *parts, _MAGICS[magic])


def _text_of_module(image: ElfImage, table_vaddr: int, offsets: tuple[int, ...], function_count: int) -> int:
    """Return the address of the code from the module's record, for Go 1.26 and later; 0 without one.

    The record (runtime/symtab.go, `moduledata`) has the addresses of the table and of its parts at `offsets`, by which
    it is recognized.
    """
    for section in image.sections_named(_MODULE_SECTION):
        data = image.section_bytes(section)[: 8 * _MODULE_WORD_COUNT]
        if len(data) < 8 * _MODULE_WORD_COUNT:
            continue
        words = struct.unpack(f"{image.byte_order}{_MODULE_WORD_COUNT}Q", data)
        *pointers, text_vaddr = (
            _relocated(image, section.vaddr + 8 * place, words[place]) for place in (*_MODULE_PARTS, _MODULE_TEXT)
        )
        expected = [table_vaddr + offset for offset in offsets]
        if pointers == expected and words[_MODULE_FUNCTION_COUNT] == function_count + 1:
            return text_vaddr
    return 0


def _relocated(image: ElfImage, vaddr: int, value: int) -> int:
    """Return the word at an address after the loader has relocated it, with the file at its linked address."""
    for table in dynamic_tables(image):
        for place, info, addend in table.records():
            if place == vaddr and info & 0xFFFFFFFF == image.arch.relative_relocation:
                return addend
    return value
