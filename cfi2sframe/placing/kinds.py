# SPDX-License-Identifier: Apache-2.0
"""Kinds of linked files that allow fewer changes: interpreters, saved images, programs that find themselves."""

from collections.abc import Iterable
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.elf.notes import parse_notes
from cfi2sframe.placing.checks import LinkedFile

#: The most bytes of .bss of an interpreter; klibc's has 17 KB.
_LARGEST_BSS: Final = 1 << 20


def may_be_interpreter(file: LinkedFile) -> bool:
    """Return whether a file with .bss may be a program interpreter: it has an entry, and needs no other file.

    The interpreters of klibc and nix-ld look like programs. A program is none if it has thread-local storage, which it
    finds by AT_PHDR, where an interpreter gets another file's headers; if it is at the address where linkers place
    programs, which interpreters leave free; or if it has more .bss than interpreters have.
    """
    last, types = file.loads[-1], {segment.type for segment in file.segments}
    bss_size = last.memory_size - last.file_size
    dynamic = dynamic_entries(file)
    if not file.header.entry_vaddr or c.PT_INTERP in types or not bss_size or c.DT_NEEDED in dynamic:
        return False
    is_fixed = file.header.type == c.ET_EXEC
    if not is_fixed and not dynamic.get(c.DT_FLAGS_1, 0) & c.DF_1_PIE:
        return True
    is_usual = is_fixed and file.loads[0].vaddr == file.arch.program_vaddr
    return c.PT_TLS not in types and not is_usual and bss_size <= _LARGEST_BSS


def is_static_go(file: LinkedFile) -> bool:
    """Return whether a file is a static program of Go: its runtime reads no program headers, and glibc no PT_PHDR."""
    types = {segment.type for segment in file.segments}
    if file.header.type != c.ET_EXEC or types & {c.PT_INTERP, c.PT_DYNAMIC}:
        return False
    contents = [file.data[s.file_offset : s.file_span.end] for s in file.segments if s.type == c.PT_NOTE]
    return any(note.owner == b"Go" for content in contents for note in parse_notes(content, file.byte_order))


def finds_itself(file: LinkedFile) -> bool:
    """Return whether a program may look for its ELF header right before its program headers.

    Zig's programs without libc do, for their stack traces. They have PT_PHDR, which lld, Zig and Go write, but no
    interpreter; libraries have no entry.
    """
    types = {segment.type for segment in file.segments}
    is_alike = c.PT_PHDR in types and c.PT_INTERP not in types and bool(file.header.entry_vaddr)
    return is_alike and not is_static_go(file)


def may_be_saved_image(file: LinkedFile) -> bool:
    """Return whether a program may be an image saved with its heap, which has to continue at the same address.

    Images of GCL and of older Emacs are: they are not position-independent, have no .bss any more, turn address
    randomization off by `personality`, and find the heap by `sbrk` or `brk`, after the highest segment.
    """
    writable = [load for load in file.loads if load.flags & c.PF_W]
    if file.header.type != c.ET_EXEC or not writable or writable[-1].stored_vaddrs.end < writable[-1].end_vaddr:
        return False
    symbols = _symbols_among(file, (b"personality", b"brk", b"sbrk"))
    return b"personality" in symbols and len(symbols) > 1


def _symbols_among(file: LinkedFile, names: Iterable[bytes]) -> set[bytes]:
    """Return which of these names symbols have."""
    wanted, symbols = tuple(name + b"\0" for name in names), set[bytes]()
    for table in file.symbol_tables:
        strings = file.section_bytes(file.sections[table.link]) if table.link < len(file.sections) else b""
        offsets = (offset for (offset,) in file.records(table, "I20x"))
        symbols.update(strings[at : strings.index(b"\0", at)] for at in offsets if strings.startswith(wanted, at))
    return symbols
