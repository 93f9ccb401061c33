# SPDX-License-Identifier: Apache-2.0
"""Core files: threads and their registers, mapped files, auxiliary vector and memory (ELF64, both byte orders)."""

from __future__ import annotations

import os
import stat
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.arch import Arch, arch_of_elf
from cfi2sframe.budget import Budget
from cfi2sframe.elf.constants import ET_CORE, PN_XNUM, PT_LOAD, PT_NOTE
from cfi2sframe.elf.load import read_file
from cfi2sframe.elf.records import PROGRAM_HEADER_SIZE, ProgramHeader, machine_name, parse_file_header
from cfi2sframe.errors import ElfError
from cfi2sframe.trace.memory import Memory, Piece
from cfi2sframe.trace.notes import parse_notes
from cfi2sframe.trace.registers import topmost_frame
from cfi2sframe.trace.space import FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.records import FileData, FileHeader
    from cfi2sframe.trace.frame import Frame
    from cfi2sframe.trace.notes import Note

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

#: File systems keep the contents of tiny files elsewhere than in blocks.
_INLINE_SIZE: Final = 4096
#: An empty note is 12 bytes, 2 us of work and 200 bytes of memory.
_NOTE_BYTES_PER_STEP: Final = 8
_NOTE_MEMORY_PER_BYTE: Final = 16

#: The kernel names no file by more bytes.
_MAX_PATH_SIZE: Final = 4096

# struct elf_prstatus of 64-bit ABIs.
_PID_OFFSET: Final = 32
_REGISTERS_OFFSET: Final = 112


class CoreThread(NamedTuple):
    """A thread: its id, its registers, and the mask of pointer authentication codes where the core has one."""

    id: int
    frame: Frame
    pac_mask: int | None


class Core(NamedTuple):
    """What a core file says. `mappings` is empty where there is no NT_FILE; `auxv` maps AT_ types to values.

    `budget` is the account of everything that is computed from the core.
    """

    arch: Arch
    threads: tuple[CoreThread, ...]
    mappings: tuple[FileMapping, ...]
    auxv: dict[int, int]
    memory: Memory
    budget: Budget


def read_core(path: str) -> Core:
    """Read a core file. Raises `ElfError` when it is none, or of a machine that SFrame is not defined for."""
    data = read_file(path)
    return parse_core(data, Budget(_size_on_disk(path, len(data))))


def _size_on_disk(path: str, size: int) -> int:
    """Return what a file of a size stores: kernels leave holes for pages that were never touched."""
    try:
        status = os.stat(path)
    except OSError:
        return size
    return min(size, status.st_blocks * 512 + _INLINE_SIZE) if stat.S_ISREG(status.st_mode) else size


def parse_core(data: FileData, budget: Budget | None = None) -> Core:
    """Parse a core file's bytes; raises as `read_core` does. What is truncated is used as far as it reaches.

    `budget` pays for what is computed from the core; by default its bytes do.
    """
    budget = budget or Budget(len(data))
    header = parse_file_header(data)
    if header.type != ET_CORE:
        raise ElfError("not a core file")
    arch = arch_of_elf(header.machine, header.byte_order)
    if arch is None:
        raise ElfError(f"SFrame is not defined for {machine_name(header.machine, header.byte_order)}")
    segments = _program_headers(data, header)
    _check_overlap(segments, len(data))
    notes: list[Note] = []
    for p in segments:
        if p.type == PT_NOTE:
            size = _stored_size(p, len(data))
            # A hole is full of empty notes.
            budget.spend(size // _NOTE_BYTES_PER_STEP, "the notes of the core")
            budget.hold(size * _NOTE_MEMORY_PER_BYTE, "the notes of the core")
            notes += parse_notes(data[p.file_offset : p.file_offset + size], header.byte_order, p.alignment)
    threads = _threads(notes, arch)
    if not threads:
        raise ElfError("no thread: the core has no usable NT_PRSTATUS note")
    return Core(arch, threads, _mappings(notes, arch), _auxv(notes, arch), Memory(_pieces(data, segments)), budget)


def _program_headers(data: FileData, header: FileHeader) -> list[ProgramHeader]:
    """Return the program headers; of a large process they may be more than the file header can count."""
    count = header.program_header_count
    if count == PN_XNUM:
        offset = header.section_headers_offset
        if not offset or offset + 64 > len(data):
            raise ElfError("truncated: the number of program headers is in a section header that is not there")
        # sh_info of the null section (gABI, e_phnum).
        (count,) = struct.unpack(header.byte_order + "I", data[offset + 44 : offset + 48])
    if count and header.program_header_size != PROGRAM_HEADER_SIZE:
        raise ElfError(f"program headers of {header.program_header_size} bytes, not {PROGRAM_HEADER_SIZE}")
    offset = header.program_headers_offset
    end = offset + count * PROGRAM_HEADER_SIZE
    if end > len(data):
        raise ElfError(f"truncated: {count} program headers at 0x{offset:x} leave the file")
    return [ProgramHeader(*fields) for fields in struct.iter_unpack(header.byte_order + "IIQQQQQQ", data[offset:end])]


def _stored_size(segment: ProgramHeader, file_size: int) -> int:
    """Return how many bytes of a segment are in the file."""
    return min(segment.file_size, max(0, file_size - segment.file_offset))


def _check_overlap(segments: Iterable[ProgramHeader], file_size: int) -> None:
    """Raise `ElfError` when segments share bytes of the file: a small core could claim any amount of memory so."""
    total = sum(_stored_size(p, file_size) for p in segments if p.type in (PT_LOAD, PT_NOTE))
    if total > file_size:
        raise ElfError(f"its segments overlap: they claim {total:,} of the file's {file_size:,} bytes")


def _pieces(data: FileData, segments: Iterable[ProgramHeader]) -> Iterable[Piece]:
    for segment in segments:
        size = min(segment.memory_size, _stored_size(segment, len(data)))
        if segment.type == PT_LOAD and size:
            yield Piece(segment.vaddr, size, data, segment.file_offset)


def _threads(notes: list[Note], arch: Arch) -> tuple[CoreThread, ...]:
    """Return the threads: each NT_PRSTATUS begins one, the notes behind it are the same thread's."""
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
    """Return the mask of instruction addresses in an NT_ARM_PAC_MASK record (of data addresses comes first)."""
    if data is None or len(data) < 16:
        return None
    return int(struct.unpack_from(arch.byte_order + "QQ", data)[1])


def _mappings(notes: list[Note], arch: Arch) -> tuple[FileMapping, ...]:
    """Return what NT_FILE says: count, page size, then (start, end, offset in pages) each, then the names."""
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
