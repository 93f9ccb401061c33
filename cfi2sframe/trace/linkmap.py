# SPDX-License-Identifier: Apache-2.0
"""Modules of a core without NT_FILE, from the auxiliary vector and the dynamic linker's list."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import DT_NULL, PT_DYNAMIC, PT_LOAD, PT_PHDR
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, unpack_program_headers
from cfi2sframe.trace.elfcore import AT_BASE, AT_EXECFN, AT_PHDR, AT_PHNUM
from cfi2sframe.trace.frame import ADDRESS_MASK
from cfi2sframe.trace.modules import ModuleFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.trace.frame import ReadMemory
    from cfi2sframe.trace.space import AddressSpace

_DT_DEBUG: Final = 21
_MAX_LINK_MAPS: Final = 4096
_MAX_NAME_SIZE: Final = 4096
_NAME_PART_SIZE: Final = 64
_MAX_DYNAMIC_COUNT: Final = 1024
_MAX_PROGRAM_HEADERS: Final = 128


class LinkMapEntry(NamedTuple):
    """An entry of the dynamic linker's list (struct link_map): a file and its load bias."""

    path: str
    bias: int


def add_modules_without_list(space: AddressSpace, auxv: dict[int, int], executable: str | None) -> None:
    """Add the executable, and the libraries that the dynamic linker has listed in the process's memory.

    `executable` is a path of this system, for which the space's `open_file` also knows the program's own name.
    """
    segments = _program_headers(space.read_own, auxv, space.arch)
    name = executable or _string(space.read_own, auxv.get(AT_EXECFN, 0)) or ""
    file = space.open_file(name) if name else "no file"
    if isinstance(file, ModuleFile):
        segments = segments or file.image.segments
    bias = _bias(segments, auxv.get(AT_PHDR))
    if isinstance(file, ModuleFile):
        space.add_file(name, file, bias)
    else:
        space.add_unusable(name or "the executable", bias, file)
        first = min((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr, default=None)
        if first is not None:
            space.add_in_memory(name or "[executable]", (first.vaddr - first.file_offset + bias) & ADDRESS_MASK)
    listed = link_maps(space.read, segments, bias, space.arch)
    for entry in listed:
        library = space.open_file(entry.path)
        if isinstance(library, ModuleFile):
            space.add_file(entry.path, library, entry.bias)
        else:
            space.add_unusable(entry.path, entry.bias, library)
    if not listed and AT_BASE in auxv:
        space.add_in_memory("[dynamic linker]", auxv[AT_BASE])


def _program_headers(read: ReadMemory, auxv: dict[int, int], arch: Arch) -> tuple[ProgramHeader, ...]:
    count = auxv.get(AT_PHNUM, 0)
    if AT_PHDR not in auxv or not 0 < count <= _MAX_PROGRAM_HEADERS:
        return ()
    table = read(auxv[AT_PHDR], count * PROGRAM_HEADER_SIZE)
    return () if table is None else unpack_program_headers(table, arch.byte_order)


def _bias(segments: Sequence[ProgramHeader], headers_address: int | None) -> int:
    """Return the load bias of the executable: AT_PHDR minus the address in PT_PHDR."""
    if headers_address is None:
        return 0
    for segment in segments:
        if segment.type == PT_PHDR:
            return headers_address - segment.vaddr
    # Static programs have no PT_PHDR; their headers follow the file header, in the segment at file offset 0.
    for segment in segments:
        if segment.type == PT_LOAD and segment.file_offset == 0:
            return (headers_address & ~0xFFF) - (segment.vaddr & ~0xFFF)
    return 0


def link_maps(read: ReadMemory, segments: Sequence[ProgramHeader], bias: int, arch: Arch) -> tuple[LinkMapEntry, ...]:
    """Return the dynamic linker's list without the executable itself; empty where it cannot be found.

    A circular list ends where it would repeat.
    """
    word = struct.Struct(arch.byte_order + "Q")
    dynamic = next((p for p in segments if p.type == PT_DYNAMIC), None)
    address = 0 if dynamic is None else _debug_address(read, (dynamic.vaddr + bias) & ADDRESS_MASK, arch)
    # struct r_debug: version, padding, first entry.
    first = read(address + 8, word.size) if address else None
    entry = 0 if first is None else word.unpack(first)[0]
    found: list[LinkMapEntry] = []
    seen: set[int] = set()
    while entry and entry not in seen and len(seen) < _MAX_LINK_MAPS:
        seen.add(entry)
        # struct link_map: bias, name, dynamic section, next, previous.
        data = read(entry, 32)
        if data is None:
            break
        entry_bias, name, _dynamic, entry = struct.unpack(arch.byte_order + "QQQQ", data)
        path = _string(read, name)
        if path:
            found.append(LinkMapEntry(path, entry_bias))
    return tuple(found)


def _debug_address(read: ReadMemory, dynamic_address: int, arch: Arch) -> int:
    """Return the address of struct r_debug, which the dynamic linker writes into the executable's DT_DEBUG."""
    for number in range(_MAX_DYNAMIC_COUNT):
        data = read((dynamic_address + 16 * number) & ADDRESS_MASK, 16)
        if data is None:
            return 0
        tag, value = struct.unpack(arch.byte_order + "QQ", data)
        if tag == _DT_DEBUG:
            return int(value)
        if tag == DT_NULL:
            return 0
    return 0


def _string(read: ReadMemory, address: int) -> str:
    """Return the NUL-terminated string at an address; empty where it cannot be read."""
    found = b""
    while address and len(found) < _MAX_NAME_SIZE:
        # Near the end of readable memory, bytes are read one by one.
        part = read(address + len(found), _NAME_PART_SIZE) or read(address + len(found), 1)
        if part is None:
            break
        name, end, _ = part.partition(b"\0")
        found += name
        if end:
            break
    return found.decode("utf-8", "surrogateescape")
