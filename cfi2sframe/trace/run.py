# SPDX-License-Identifier: Apache-2.0
"""Trace a core file or a process: all of its threads, or one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.errors import ChangedError, InputError, RequestError, naming
from cfi2sframe.printable import counted
from cfi2sframe.trace.elfcore import AT_ENTRY, AT_PHDR, AT_SYSINFO_EHDR, read_core
from cfi2sframe.trace.failures import guarded
from cfi2sframe.trace.frame import Ending, Located, Trace, TraceEntry
from cfi2sframe.trace.linkmap import add_modules_without_list
from cfi2sframe.trace.modules import FileStore, ModuleFile
from cfi2sframe.trace.process import Process, SnapshotReader, file_mappings
from cfi2sframe.trace.space import AddressSpace
from cfi2sframe.trace.stepping import DEFAULT_PAC_MASK
from cfi2sframe.trace.walking import DEFAULT_LIMIT, walk

if TYPE_CHECKING:
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.trace.elfcore import Core, CoreThread
    from cfi2sframe.trace.process import LiveThread, Snapshot

Threads = Literal["all"] | int

#: How often a process is stopped at most, to copy memory of frames that was missing in the copy before (alternate
#: signal stacks, stacks of many megabytes).
_MAX_STOPS: Final = 5
#: The deepest root directory of a process, in folders.
_MAX_ROOT_DEPTH: Final = 64


class ThreadTrace(NamedTuple):
    """A thread's trace. `id` is the kernel's thread id."""

    id: int
    trace: Trace


class Traced(NamedTuple):
    """The traces of a core or a process, in its order of threads, and the address space that they are in.

    As text it is what `cfi2sframe trace` prints.
    """

    space: AddressSpace
    threads: tuple[ThreadTrace, ...]

    def __repr__(self) -> str:
        return f"<Traced: {counted(len(self.threads), 'thread')}>"

    def __str__(self) -> str:
        from cfi2sframe.trace.formatting import trace_lines

        return "\n".join(trace_lines(self))


def trace_core(
    path: str,
    *,
    executable: str | None = None,
    threads: Threads = "all",
    store: FileStore | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Traced:
    """Trace the threads of a core file.

    `executable` is the program's file, where it is not at its own path. `store` opens the mapped files and keeps them
    for further calls; its `sysroot` is where they are looked for. Raises `InputError` when the core or
    the executable cannot be used, `RequestError` when there is no such thread.
    """
    store = store or FileStore()
    with naming(path):
        core = read_core(path)
        space = core_space(core, store, executable)
        wanted = [t for t in core.threads if threads in ("all", t.id)]
        if not wanted:
            raise RequestError(f"no thread {threads}; there are {', '.join(str(t.id) for t in core.threads)}")
        traces = (_trace_thread(thread, space, limit) for thread in wanted)
        return Traced(space, tuple(traces))


def _trace_thread(thread: CoreThread | LiveThread, space: AddressSpace, limit: int) -> ThreadTrace:
    def trace() -> Trace:
        return walk(
            thread.frame,
            space.find_row,
            space.read,
            space.arch,
            limit=limit,
            pac_mask=DEFAULT_PAC_MASK if thread.pac_mask is None else thread.pac_mask,
        )

    def failed(reason: str) -> Trace:
        entry = TraceEntry(thread.frame, Located(None, None, None), None)
        return Trace((entry,), Ending("internal-error", reason))

    # Modules are read before, so only the core can have changed here, and that concerns all threads.
    return ThreadTrace(thread.id, guarded(trace, failed, ChangedError))


def core_space(core: Core, store: FileStore, executable: str | None = None) -> AddressSpace:
    """Return the address space of a core file. Raises `InputError` when the executable cannot be used."""
    program: ModuleFile | None = None
    program_path = executable
    if executable is not None:
        opened = store.open_here(executable, executable)
        if isinstance(opened, str):
            raise InputError(opened, executable)
        if opened.image.arch != core.arch:
            raise InputError(f"the core is of {core.arch.name}, the executable of {opened.image.arch.name}")
        program = opened
        inside = {core.auxv.get(AT_PHDR), core.auxv.get(AT_ENTRY)} - {None}
        for mapping in core.mappings:
            if any(mapping.start <= address < mapping.end for address in inside if address is not None):
                program_path = mapping.path

    def open_file(name: str) -> ModuleFile | str:
        return program if program is not None and name == program_path else store.open(name)

    space = AddressSpace(core.arch, core.memory.read, open_file, store.of_memory)
    if AT_SYSINFO_EHDR in core.auxv:
        space.add_in_memory("[vdso]", core.auxv[AT_SYSINFO_EHDR])
    if core.mappings:
        space.add_mappings(core.mappings)
    else:
        add_modules_without_list(space, core.auxv, program_path)
    return space


def trace_process(
    pid: int,
    *,
    threads: Threads = "all",
    store: FileStore | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Traced:
    """Trace the threads of a live process.

    It is stopped only while registers and stacks are copied. A frame on memory that was not copied (below an alternate
    signal stack, for one) makes it stop again, with that memory in the next copy. Give several samples of the same
    programs one `store`: it keeps what was converted. Files are looked for where the process sees them, unless the
    store has a `sysroot`. Raises `InputError` when the process cannot be traced, `RequestError` when there is no such
    thread.
    """
    store = store or FileStore()
    thread_id = None if threads == "all" else threads
    extra: set[Span] = set()
    stops = 0
    with naming(f"process {pid}"), Process(pid) as process:
        while True:
            snapshot = process.copy(thread_id, extra)
            reader = SnapshotReader(process, snapshot)
            space = _process_space(process, snapshot, reader, store)
            traces = tuple(_trace_thread(thread, space, limit) for thread in snapshot.threads)
            missed = reader.missed - extra
            stops += 1
            if not missed or stops == _MAX_STOPS:
                return Traced(space, traces)
            extra |= missed


def _process_space(process: Process, snapshot: Snapshot, reader: SnapshotReader, store: FileStore) -> AddressSpace:
    # The kernel lists paths from the top of the process's mount namespace, whatever root the process has changed to.
    sysroot = store.sysroot or f"/proc/{process.pid}/root" + "/.." * _MAX_ROOT_DEPTH

    def open_file(path: str) -> ModuleFile | str:
        return store.open(path, sysroot)

    space = AddressSpace(process.arch, reader.read, open_file, store.of_memory)
    vdso = process.auxv().get(AT_SYSINFO_EHDR)
    if vdso is not None:
        space.add_in_memory("[vdso]", vdso)
    space.add_mappings(file_mappings(snapshot.mappings))
    return space
