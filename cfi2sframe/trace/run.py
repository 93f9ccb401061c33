# SPDX-License-Identifier: Apache-2.0
"""Trace a core file or a process: all of its threads, or one."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import PT_LOAD
from cfi2sframe.elf.load import read_file
from cfi2sframe.errors import ChangedError, CostError, InputError, RequestError, naming, reason_of
from cfi2sframe.trace.cores import parse_core
from cfi2sframe.trace.files import FileStore
from cfi2sframe.trace.frames import Ending, Trace, TraceEntry
from cfi2sframe.trace.processes import Process
from cfi2sframe.trace.space import PAGE_SIZE, VDSO, AddressSpace, FileMapping, end_of
from cfi2sframe.trace.traced import Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.trace.cores import Stopped
    from cfi2sframe.trace.files import ModuleFile
    from cfi2sframe.trace.frames import StoppedThread

# Types of entries of the auxiliary vector.
_AT_PHDR: Final = 3
_AT_ENTRY: Final = 9
_AT_SYSINFO_EHDR: Final = 33

#: How often a process is stopped at most, to copy memory of frames that was missing in the copy before (alternate
#: signal stacks, stacks of many megabytes).
_MAX_STOPS: Final = 5
#: The deepest root directory of a process, in folders.
_MAX_ROOT_DEPTH: Final = 64


def trace_core(
    core: str | FileData, *, executable: str | None = None, thread: int | None = None, store: FileStore | None = None
) -> Traced:
    """Trace the threads of a core, or one by its id.

    `core` is the path of its file, or its bytes. `executable` is the program's file, where it is not at its own path.
    `store` opens the mapped files and keeps them for further calls. Raises `InputError` when the core or the executable
    cannot be used, `RequestError` when there is no such thread.
    """
    with naming(core) if isinstance(core, str) else nullcontext():
        stopped = parse_core(read_file(core) if isinstance(core, str) else core)
        space = core_space(stopped, store or FileStore(), executable)
        wanted = [each for each in stopped.threads if thread in (None, each.id)]
        if not wanted:
            raise RequestError(f"no thread {thread}; there are {', '.join(str(t.id) for t in stopped.threads)}")
        return _trace(space, wanted)


def core_space(core: Stopped, store: FileStore, executable: str | None = None) -> AddressSpace:
    """Return the address space of a core file. Raises `InputError` when the executable cannot be used."""
    if executable is None:
        return _space(core, store, store.open)
    program = store.open(executable)
    if isinstance(program, str):
        raise InputError(program, executable)
    if program.image.arch != core.arch:
        raise InputError(f"the core is of {core.arch.name}, the executable of {program.image.arch.name}")
    starts = [core.auxv[kind] for kind in (_AT_PHDR, _AT_ENTRY) if kind in core.auxv]
    paths = {m.path for m in core.mappings if any(m.start <= address < m.end for address in starts)}
    if not core.mappings:
        core = core._replace(mappings=_mapped(program.image, core.auxv.get(_AT_PHDR)))
    return _space(core, store, lambda path: program if path in (executable, *paths) else store.open(path))


def _mapped(image: ElfImage, headers_address: int | None) -> list[FileMapping]:
    """Return where a program is, from the address of its program headers (AT_PHDR)."""
    offset = image.headers.file.program_headers_offset
    loads = [p for p in image.segments if p.type == PT_LOAD]
    first = next((p for p in loads if p.file_offset <= offset < p.file_offset + p.file_size), None)
    if first is None or headers_address is None:
        return []
    bias = headers_address - (first.vaddr + offset - first.file_offset)
    return [FileMapping(loads[0].vaddr + bias, end_of(loads, bias), loads[0].file_offset, image.name)]


def trace_process(pid: int, *, thread: int | None = None, store: FileStore | None = None) -> Traced:
    """Trace the threads of a live process, or one by its id.

    It is stopped only while registers and stacks are copied. A frame on memory that was not copied (below an alternate
    signal stack, for one) makes it stop again, with that memory in the next copy. Give several samples of the same
    programs one `store`: it keeps what was converted. Files are looked for where the process sees them. Raises
    `InputError` when the process cannot be traced, or has no such thread.
    """
    files = store or FileStore()
    # The kernel lists paths from the top of the process's mount namespace, whatever root the process has changed to.
    root = f"/proc/{pid}/root" + "/.." * _MAX_ROOT_DEPTH
    with naming(f"process {pid}"), closing(Process(pid)) as process:
        stops = 0
        while True:
            stops, wanted = stops + 1, set(process.wanted)
            stopped = process.copy(thread)
            traced = _trace(_space(stopped, files, lambda path: files.open(path, root)), stopped.threads)
            if stops == _MAX_STOPS or process.wanted == wanted:
                return traced


def _space(stopped: Stopped, store: FileStore, open_file: Callable[[str], ModuleFile | str]) -> AddressSpace:
    """Return an address space of the mappings, and of the vDSO."""
    mappings = list(stopped.mappings)
    vdso = stopped.auxv.get(_AT_SYSINFO_EHDR)
    if vdso is not None and not any(mapping.start <= vdso < mapping.end for mapping in mappings):
        # Only its headers tell where it ends.
        mappings.append(FileMapping(vdso, vdso + PAGE_SIZE, 0, VDSO))
    return AddressSpace(stopped.arch, mappings, store, stopped.read, open_file=open_file, lack=stopped.lack)


def _trace(space: AddressSpace, threads: Sequence[StoppedThread]) -> Traced:
    return Traced(space, tuple(_trace_thread(space, thread)._replace(thread_id=thread.id) for thread in threads))


def _trace_thread(space: AddressSpace, thread: StoppedThread) -> Trace:
    try:
        return space.walk(thread.frame, pac_mask=thread.pac_mask)
    except (ChangedError, CostError):
        # Files are looked at apart, so it is the core that has changed, or all that costs too much.
        raise
    except Exception as error:  # noqa: BLE001 - the last handler of a thread
        return Trace((TraceEntry(thread.frame),), Ending("internal-error", reason_of(error)))
