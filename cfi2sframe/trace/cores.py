# SPDX-License-Identifier: Apache-2.0
"""Core files: threads and their registers, mapped files, auxiliary vector and memory (ELF64, both byte orders)."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import Arch, arch_of_elf
from cfi2sframe.elf.constants import ET_CORE, PT_LOAD, PT_NOTE
from cfi2sframe.elf.contents import part_of
from cfi2sframe.elf.headers import FileHeader, machine_name, parse_file_header, parse_program_headers
from cfi2sframe.elf.notes import parse_notes
from cfi2sframe.errors import ElfError
from cfi2sframe.trace.frames import NT_PRSTATUS, thread_of_notes
from cfi2sframe.trace.space import FileMapping, Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.notes import Note
    from cfi2sframe.trace.frames import ReadMemory, StoppedThread

_NT_AUXV: Final = 6
_NT_FILE: Final = 0x46494C45
#: The owners of the notes that are read: of those of an ABI's own registers, the second.
_OWNERS: Final = (b"CORE", b"LINUX")
#: The longest path in bytes that the kernel writes.
_MAX_PATH_SIZE: Final = 4096
# struct elf_prstatus of 64-bit ABIs.
_PID_OFFSET: Final = 32
_REGISTERS_OFFSET: Final = 112


class Stopped(NamedTuple):
    """What a trace needs of a core or a process: threads, mapped files, auxiliary vector (AT_ types to values), memory.

    `lack` ends the message about an address of no file.
    """

    arch: Arch
    threads: Sequence[StoppedThread]
    mappings: Sequence[FileMapping]
    auxv: Mapping[int, int]
    read: ReadMemory
    lack: str = ""


def parse_core(data: FileData) -> Stopped:
    """Return the contents of a core file. A truncated core is used as far as it reaches.

    Raises `ElfError` when they are none, or of a machine that SFrame is not defined for.
    """
    header = parse_file_header(data)
    if header.type != ET_CORE:
        raise ElfError("not a core file")
    arch = arch_of_header(header)
    segments = [
        (p, part_of(data, p.file_offset, p.file_offset + p.file_size))
        for p in parse_program_headers(data, header)
        if p.type in (PT_LOAD, PT_NOTE)
    ]
    total = sum(len(content) for _, content in segments)
    if total > len(data):
        # A small core could claim any amount of memory.
        raise ElfError(f"its segments overlap: they claim {total:,} of the file's {len(data):,} bytes")
    memory = Memory((p.vaddr, part_of(content, 0, p.memory_size)) for p, content in segments if p.type == PT_LOAD)
    notes = [
        note
        for p, content in segments
        if p.type == PT_NOTE
        for note in parse_notes(content[:], header.byte_order, p.alignment)
        if note.owner in _OWNERS
    ]
    threads = tuple(_threads(notes, arch))
    if not threads:
        raise ElfError("no thread: the core has no usable NT_PRSTATUS note")
    data_of = {note.type: note.data for note in reversed(notes)}
    mappings = _mappings(data_of.get(_NT_FILE, b""), arch)
    lack = "" if mappings else "; the core does not list its files (NT_FILE)"
    return Stopped(arch, threads, mappings, parse_auxv(data_of.get(_NT_AUXV, b""), arch), memory.read, lack)


def arch_of_header(header: FileHeader) -> Arch:
    """Return the ABI of an ELF file. Raises `ElfError` when SFrame has none for it."""
    arch = arch_of_elf(header.machine, header.byte_order)
    if arch is None:
        raise ElfError(f"SFrame is not defined for {machine_name(header.machine, header.byte_order)}")
    return arch


def _threads(notes: list[Note], arch: Arch) -> Iterator[StoppedThread]:
    """Yield the threads: each NT_PRSTATUS starts one, and the notes after it belong to the same thread."""
    starts = [number for number, note in enumerate(notes) if note.type == NT_PRSTATUS]
    for start, end in pairwise([*starts, len(notes)]):
        status = notes[start].data
        sets = {note.type: note.data for note in reversed(notes[start + 1 : end])}
        thread = thread_of_notes(0, sets | {NT_PRSTATUS: status[_REGISTERS_OFFSET:]}, arch)
        if thread is not None:
            (thread_id,) = struct.unpack_from(arch.byte_order + "i", status, _PID_OFFSET)
            yield thread._replace(id=thread_id)


def _mappings(data: bytes, arch: Arch) -> tuple[FileMapping, ...]:
    """Return the mappings of NT_FILE: count, page size, then (start, end, offset in pages) each, then the names."""
    if len(data) < 16:
        return ()
    count, page_size = struct.unpack_from(arch.byte_order + "QQ", data)
    names_offset = 16 + count * 24
    if names_offset > len(data):
        return ()
    names = data[names_offset:].split(b"\0")
    records = struct.iter_unpack(arch.byte_order + "QQQ", data[16:names_offset])
    return tuple(
        FileMapping(start, end, offset * page_size, name[:_MAX_PATH_SIZE].decode("utf-8", "surrogateescape"))
        for (start, end, offset), name in zip(records, names, strict=False)
        if start < end
    )


def parse_auxv(data: bytes, arch: Arch) -> dict[int, int]:
    """Return an auxiliary vector as AT_ types and their values."""
    return dict(struct.iter_unpack(arch.byte_order + "QQ", data[: len(data) // 16 * 16]))
