# SPDX-License-Identifier: Apache-2.0
"""Core files: threads and their registers, mapped files, auxiliary vector and memory (ELF64, both byte orders)."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.arch import Arch, arch_of_elf
from cfi2sframe.elf.constants import ET_CORE, PT_LOAD, PT_NOTE
from cfi2sframe.elf.headers import ProgramHeader, machine_name, parse_file_header, parse_program_headers
from cfi2sframe.elf.load import read_file
from cfi2sframe.elf.notes import parse_notes
from cfi2sframe.errors import ElfError
from cfi2sframe.trace.kernel_registers import topmost_frame
from cfi2sframe.trace.memory import Memory, MemoryPiece
from cfi2sframe.trace.space import FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.notes import Note
    from cfi2sframe.trace.frame import Frame

NT_PRSTATUS: Final = 1
NT_PRFPREG: Final = 2
NT_AUXV: Final = 6
NT_FILE: Final = 0x46494C45
NT_ARM_PAC_MASK: Final = 0x406

AT_NULL: Final = 0
AT_PHDR: Final = 3
AT_PHNUM: Final = 5
AT_BASE: Final = 7
AT_ENTRY: Final = 9
AT_EXECFN: Final = 31
AT_SYSINFO_EHDR: Final = 33

#: The longest path in bytes that the kernel writes.
_MAX_PATH_SIZE: Final = 4096

# struct elf_prstatus of 64-bit ABIs.
_PID_OFFSET: Final = 32
_REGISTERS_OFFSET: Final = 112


class CoreThread(NamedTuple):
    """A thread: its id, its topmost frame, and the mask of pointer authentication codes where the core has one."""

    id: int
    frame: Frame
    pac_mask: int | None


class Core(NamedTuple):
    """The contents of a core file. `mappings` is empty without NT_FILE; `auxv` maps AT_ types to values."""

    arch: Arch
    threads: tuple[CoreThread, ...]
    mappings: tuple[FileMapping, ...]
    auxv: dict[int, int]
    memory: Memory


def read_core(path: str) -> Core:
    """Read a core file. Raises `ElfError` when it is none, or of a machine that SFrame is not defined for."""
    return parse_core(read_file(path))


def parse_core(data: FileData) -> Core:
    """Parse a core file's bytes; raises as `read_core` does. A truncated core is used as far as it reaches."""
    header = parse_file_header(data)
    if header.type != ET_CORE:
        raise ElfError("not a core file")
    arch = arch_of_elf(header.machine, header.byte_order)
    if arch is None:
        raise ElfError(f"SFrame is not defined for {machine_name(header.machine, header.byte_order)}")
    segments = parse_program_headers(data, header)
    _check_overlap(segments, len(data))
    notes: list[Note] = []
    for p in segments:
        if p.type == PT_NOTE:
            size = _stored_size(p, len(data))
            # A hole reads as empty notes.
            notes += parse_notes(data[p.file_offset : p.file_offset + size], header.byte_order, p.alignment)
    threads = _threads(notes, arch)
    if not threads:
        raise ElfError("no thread: the core has no usable NT_PRSTATUS note")
    return Core(arch, threads, _mappings(notes, arch), _auxv(notes, arch), Memory(_pieces(data, segments)))


def _stored_size(segment: ProgramHeader, file_size: int) -> int:
    """Return how many bytes of a segment are in the file."""
    return min(segment.file_size, max(0, file_size - segment.file_offset))


def _check_overlap(segments: Iterable[ProgramHeader], file_size: int) -> None:
    """Raise `ElfError` when segments share bytes of the file, which lets a small core claim any amount of memory."""
    total = sum(_stored_size(p, file_size) for p in segments if p.type in (PT_LOAD, PT_NOTE))
    if total > file_size:
        raise ElfError(f"its segments overlap: they claim {total:,} of the file's {file_size:,} bytes")


def _pieces(data: FileData, segments: Iterable[ProgramHeader]) -> Iterable[MemoryPiece]:
    for segment in segments:
        size = min(segment.memory_size, _stored_size(segment, len(data)))
        if segment.type == PT_LOAD and size:
            yield MemoryPiece(segment.vaddr, size, data, segment.file_offset)


def _threads(notes: list[Note], arch: Arch) -> tuple[CoreThread, ...]:
    """Return the threads: each NT_PRSTATUS starts one, and the notes after it belong to the same thread."""
    threads: list[CoreThread] = []
    starts = [n for n, note in enumerate(notes) if note.owner == b"CORE" and note.type == NT_PRSTATUS]
    for start, end in pairwise([*starts, len(notes)]):
        status, more = notes[start].data, notes[start + 1 : end]
        floats = next((n.data for n in more if n.type == NT_PRFPREG and n.owner == b"CORE"), None)
        frame = topmost_frame(status[_REGISTERS_OFFSET:], arch, floats)
        if frame is None:
            continue
        (thread_id,) = struct.unpack_from(arch.byte_order + "i", status, _PID_OFFSET)
        masks = next((n.data for n in more if n.type == NT_ARM_PAC_MASK), None)
        threads.append(CoreThread(thread_id, frame, parse_pac_mask(masks, arch)))
    return tuple(threads)


def parse_pac_mask(data: bytes | None, arch: Arch) -> int | None:
    """Return the mask for instruction addresses of an NT_ARM_PAC_MASK record; it follows the one for data addresses."""
    if data is None or len(data) < 16:
        return None
    return int(struct.unpack_from(arch.byte_order + "QQ", data)[1])


def _mappings(notes: list[Note], arch: Arch) -> tuple[FileMapping, ...]:
    """Return the mappings of NT_FILE: count, page size, then (start, end, offset in pages) each, then the names."""
    data = next((n.data for n in notes if n.type == NT_FILE and n.owner == b"CORE"), b"")
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


def _auxv(notes: list[Note], arch: Arch) -> dict[int, int]:
    data = next((n.data for n in notes if n.type == NT_AUXV and n.owner == b"CORE"), b"")
    return parse_auxv(data, arch)


def parse_auxv(data: bytes, arch: Arch) -> dict[int, int]:
    """Return an auxiliary vector as AT_ types and their values."""
    usable = data[: len(data) // 16 * 16]
    return {kind: value for kind, value in struct.iter_unpack(arch.byte_order + "QQ", usable) if kind != AT_NULL}
