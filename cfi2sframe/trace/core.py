# SPDX-License-Identifier: Apache-2.0
"""A core file: its snapshot (memory, threads, mapped files, how the process ended), and the trace of its threads."""

import os
import struct
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.constants.elf import ET_CORE, PF_X, PT_LOAD, PT_NOTE
from cfi2sframe.elf.contents import FileData, part_of
from cfi2sframe.elf.headers import parse_file_header, parse_program_headers
from cfi2sframe.elf.load import File, content_of
from cfi2sframe.elf.notes import Note, parse_notes
from cfi2sframe.errors import ElfError, InputError, RequestError, checked_path, with_file_name
from cfi2sframe.range_map import united
from cfi2sframe.trace.frames import NT_PRSTATUS, Frame, topmost_frame
from cfi2sframe.trace.snapshot import (
    NT_ARM_PAC_MASK,
    Death,
    FileMapping,
    Memory,
    Snapshot,
    arch_of_header,
    auxv_of,
    pac_mask_of,
)
from cfi2sframe.trace.space import AddressSpace
from cfi2sframe.trace.store import FileStore, ModuleFile
from cfi2sframe.trace.traced import Traced, trace_threads

# Types of notes.
_NT_PRPSINFO: Final = 3
_NT_AUXV: Final = 6
_NT_FILE: Final = 0x46494C45
_NT_SIGINFO: Final = 0x53494749
#: The owners of the notes that are read; an ABI's own registers have the second.
_OWNERS: Final = (b"CORE", b"LINUX")
# struct elf_prstatus of 64-bit ABIs.
_SIGNAL_OFFSET: Final = 12
_PID_OFFSET: Final = 32
_REGISTERS_OFFSET: Final = 112
#: struct elf_prpsinfo: the command line, of at most 80 bytes.
_COMMAND_OFFSET: Final = 56
_COMMAND_END: Final = 136
#: Signals whose siginfo has an address: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV.
_WITH_ADDRESS: Final = (4, 5, 7, 8, 11)
# Types of entries of the auxiliary vector.
_AT_PHDR: Final = 3
_AT_ENTRY: Final = 9
#: Packers by the first bytes of their files.
_PACKED: Final = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x1f\x8b": "gzip",
    b"\xfd7zX": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bzip2",
}


def parse_core(data: FileData) -> Snapshot:
    """Return a snapshot of a core file. A truncated core is used as far as it reaches.

    Raises `InputError` when it is no core, has no thread, or SFrame is not defined for its machine.
    """
    packer = next((tool for magic, tool in _PACKED.items() if bytes(data[: len(magic)]) == magic), None)
    if packer is not None:
        raise InputError(f"compressed; run: {packer} -dc CORE | cfi2sframe trace -")
    header = parse_file_header(data)
    if header.type != ET_CORE:
        raise ElfError("not a core file")
    arch = arch_of_header(header)
    segments = [p for p in parse_program_headers(data, header) if p.type in (PT_LOAD, PT_NOTE)]
    pieces: list[tuple[int, FileData]] = []
    notes: list[Note] = []
    for p in segments:
        if p.type == PT_LOAD:
            pieces.append((p.vaddr, part_of(data, p.file_offset, p.file_offset + min(p.file_size, p.memory_size))))
        else:
            content = part_of(data, *p.file_span)[:]
            notes += [note for note in parse_notes(content, header.byte_order, p.alignment) if note.owner in _OWNERS]
    threads: list[tuple[int, Frame]] = []
    # Each NT_PRSTATUS starts a thread, and the notes after it belong to the same one.
    starts = [number for number, note in enumerate(notes) if note.type == NT_PRSTATUS]
    for start, end in pairwise([*starts, len(notes)]):
        status = notes[start].data
        sets = {note.type: note.data for note in reversed(notes[start + 1 : end])}
        frame = topmost_frame(sets | {NT_PRSTATUS: status[_REGISTERS_OFFSET:]}, arch)
        if frame is not None:
            threads.append((struct.unpack_from(arch.byte_order + "i", status, _PID_OFFSET)[0], frame))
    whole_size = max((p.file_offset + p.file_size for p in segments), default=0)
    warning = f"truncated: it has {len(data):,} of {whole_size:,} bytes" if whole_size > len(data) else ""
    if not threads:
        raise ElfError("no thread: the core " + (f"is {warning}" if warning else "has no usable NT_PRSTATUS note"))
    data_of = {note.type: note.data for note in reversed(notes)}
    mappings = _listed_files(data_of.get(_NT_FILE, b""), arch)
    no_file_hint = "" if mappings else "; the core does not list its files (NT_FILE)"
    auxv = auxv_of(data_of.get(_NT_AUXV, b""), arch)
    pac_mask = pac_mask_of(data_of.get(NT_ARM_PAC_MASK, b""), arch)
    code = united((p.vaddr, p.end_vaddr) for p in segments if p.type == PT_LOAD and p.flags & PF_X) or None
    death = _death(data_of, arch)
    read = Memory(pieces).read
    return Snapshot(arch, mappings, read, threads, auxv, pac_mask, no_file_hint, code, death, warning)


def _listed_files(data: bytes, arch: Arch) -> list[FileMapping]:
    """Return the mappings of NT_FILE: count, page size, then (start, end, offset in pages) each, then the names."""
    count, page_size = struct.unpack_from(arch.byte_order + "QQ", data.ljust(16, b"\0"))
    names_offset = 16 + count * 24
    if names_offset > len(data):
        return []
    names = data[names_offset:].split(b"\0")
    records = struct.iter_unpack(arch.byte_order + "QQQ", data[16:names_offset])
    return [
        FileMapping(start, end, offset * page_size, os.fsdecode(name))
        for (start, end, offset), name in zip(records, names, strict=False)
        if start < end
    ]


def _death(data_of: Mapping[int, bytes], arch: Arch) -> Death | None:
    """Return how the process of a core ended, by its first note of each type; None where no note tells."""
    status, about = data_of[NT_PRSTATUS], data_of.get(_NT_SIGINFO, b"")
    if len(status) < _REGISTERS_OFFSET:
        return None
    # The first thread is the one that received the signal.
    (thread,) = struct.unpack_from(arch.byte_order + "i", status, _PID_OFFSET)
    (signal,) = struct.unpack_from(arch.byte_order + "h", status, _SIGNAL_OFFSET)
    code = address = None
    if len(about) >= 24:
        signal, _, code = struct.unpack_from(arch.byte_order + "iii", about)
        # A positive code is the kernel's own.
        if signal in _WITH_ADDRESS and code > 0:
            (address,) = struct.unpack_from(arch.byte_order + "Q", about, 16)
    command = data_of.get(_NT_PRPSINFO, b"")[_COMMAND_OFFSET:_COMMAND_END].rstrip(b"\0 ").decode("utf-8", "replace")
    return Death(signal, code, address, thread, command) if signal or command else None


def trace_core(
    core: File,
    *,
    executable: str | os.PathLike[str] | None = None,
    thread: int | None = None,
    store: FileStore | None = None,
    sysroot: str | os.PathLike[str] = "",
) -> Traced:
    """Trace the threads of a core, or one by its id.

    `core` is its file, given as for `load`. `executable` is the program's file, where it is not at its own path.
    `store` opens the mapped files and keeps them for further calls. `sysroot` is the directory below which they are, if
    the core is of another machine; no link leads out of it. Raises `InputError` when the core or the executable cannot
    be used, `RequestError` when there is no such thread.
    """
    store, root = store or FileStore(), checked_path(sysroot)
    data, name = content_of(core)
    with with_file_name(name):
        snapshot = parse_core(data)
        open_file: Callable[[str], ModuleFile | str] = partial(store.open, root=root or os.sep)
        if executable is not None:
            snapshot, open_file = _with_program(snapshot, checked_path(executable), store, open_file)
        threads = [(number, frame) for number, frame in snapshot.threads if thread in (None, number)]
        if not threads:
            raise RequestError(
                f"no thread {thread}; there are {', '.join(str(number) for number, _ in snapshot.threads)}"
            )
        return trace_threads(AddressSpace(snapshot, store, open_file, root), threads)


def _with_program(
    core: Snapshot, path: str, store: FileStore, open_file: Callable[[str], ModuleFile | str]
) -> tuple[Snapshot, Callable[[str], ModuleFile | str]]:
    """Return a core, and a function that opens its files, with a program that is not at its own path.

    Raises `InputError`.
    """
    program = store.open(path)
    if isinstance(program, str):
        raise InputError(program, path)
    image = program.image
    if image.arch != core.arch:
        raise InputError(f"the core is for {core.arch.name}, the executable for {image.arch.name}")
    starts = [core.auxv[kind] for kind in (_AT_PHDR, _AT_ENTRY) if kind in core.auxv]
    paths = {m.path for m in core.mappings if any(m.start <= address < m.end for address in starts)} | {path}
    if not core.mappings and _AT_PHDR in core.auxv:
        # qemu lists no files. The end may be too large; what holds addresses is decided by the program's segments.
        start = core.auxv[_AT_PHDR] - image.header.program_headers_offset
        core = core._replace(mappings=[FileMapping(start, start + image.end_of_segments(), 0, path)])
    return core, lambda name: program if name in paths else open_file(name)
