# SPDX-License-Identifier: Apache-2.0
"""Program interpreters (ld.so), which must not get a new last segment.

Kernels before 6.7 map the .bss of a program interpreter only after its last segment. With a new segment there, the
variables of the interpreter would not be mapped, and no program would start.

The program headers of an interpreter are those of any library that needs no other. What sets it apart is that the
kernel starts it, at e_entry. Other libraries have 0 there, except those that mold links: it takes the start of `.text`
where no symbol is called `_start`. Interpreters also define what debuggers and libraries ask of one: `_dl_debug_state`
and `__tls_get_addr` (on s390x `__tls_get_offset`) in glibc and musl. One sign of the two is enough.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import (
    DF_1_PIE,
    DT_FLAGS_1,
    DT_NEEDED,
    ET_DYN,
    PT_INTERP,
    PT_LOAD,
    SHN_UNDEF,
    SHT_DYNSYM,
    SHT_SYMTAB,
)
from cfi2sframe.elf.headers import SYMBOL_SIZE
from cfi2sframe.rewrite.movable import dynamic_entries

if TYPE_CHECKING:
    from cfi2sframe.rewrite.gate import LinkedFile

#: Start routines, and what debuggers and libraries take from an interpreter (the last two: of FreeBSD and Android).
_INTERPRETER_SYMBOLS: Final = (
    b"_start",
    b"_dlstart",
    b"_dl_debug_state",
    b"_r_debug",
    b"_rtld_global",
    b"__tls_get_addr",
    b"__tls_get_offset",
    b"r_debug_state",
    b"rtld_db_dlactivity",
)


def reason_against_tail(file: LinkedFile) -> str | None:
    """Return why a new last segment would be a risk for this file; None when it is no risk."""
    if file.header.type != ET_DYN or not file.header.entry_vaddr:
        return None
    if any(segment.type == PT_INTERP for segment in file.segments):
        return None
    if not any(segment.type == PT_LOAD and segment.memory_size > segment.file_size for segment in file.segments):
        return None
    entries = dynamic_entries(file)
    if any(entry.tag == DT_NEEDED or (entry.tag == DT_FLAGS_1 and entry.value & DF_1_PIE) for entry in entries):
        return None
    if _starts_with_entry(file) and _has_symbols_of_a_library(file):
        return None
    return (
        "this looks like a program interpreter (ld.so), whose .bss kernels before 6.7 map only when it ends "
        "the last segment"
    )


def _starts_with_entry(file: LinkedFile) -> bool:
    """Whether the entry is where `.text` starts: mold's choice where there is no start routine."""
    return any(
        name == ".text" and section.vaddr == file.header.entry_vaddr
        for name, section in zip(file.names, file.sections, strict=True)
    )


def _has_symbols_of_a_library(file: LinkedFile) -> bool:
    """Whether dynamic symbols are defined, and no symbol is one of an interpreter's."""
    has_dynamic = False
    for index, section in enumerate(file.sections):
        if section.type not in (SHT_DYNSYM, SHT_SYMTAB) or not section.is_stored:
            continue
        if not 0 < section.link < len(file.sections) or not file.sections[section.link].is_stored:
            return False
        strings = file.section_bytes(section.link)
        wanted = {at for name in _INTERPRETER_SYMBOLS for at in _places(strings, name + b"\0")}
        symbols = file.section_bytes(index)
        symbols = symbols[: len(symbols) - len(symbols) % SYMBOL_SIZE]
        for name_offset, section_index in struct.iter_unpack(file.order + "I2xH16x", symbols):
            if section_index == SHN_UNDEF:
                continue
            if name_offset in wanted:
                return False
            has_dynamic |= section.type == SHT_DYNSYM
    return has_dynamic


def _places(strings: bytes, name: bytes) -> list[int]:
    """Return all offsets of a name in a string table, also those at the end of longer names."""
    found = []
    at = strings.find(name)
    while at >= 0:
        found.append(at)
        at = strings.find(name, at + 1)
    return found
