# SPDX-License-Identifier: Apache-2.0
"""The traces of a core file or a process, of all of its threads or one, as text and as JSON."""

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from cfi2sframe.elf.load import File, content_of
from cfi2sframe.errors import ChangedError, CostError, InputError, RequestError, checked_path, reason_of, with_file_name
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.text import counted, printable
from cfi2sframe.trace.core import parse_core
from cfi2sframe.trace.frames import NULL_END, Ending, Frame, Trace, TraceEntry
from cfi2sframe.trace.snapshot import Death, FileMapping, Process, Snapshot
from cfi2sframe.trace.space import DELETED, AddressSpace
from cfi2sframe.trace.store import FileStore, ModuleFile

# Types of entries of the auxiliary vector.
_AT_PHDR: Final = 3
_AT_ENTRY: Final = 9

#: The most stops of a process. Each copies memory of frames that the copy before had not (alternate signal stacks,
#: stacks of many megabytes).
_MAX_STOPS: Final = 5
#: The deepest root directory of a process, in folders.
_MAX_ROOT_DEPTH: Final = 64


class Traced(NamedTuple):
    """The traces of a core or a process, in its order of threads, and the address space that they are in.

    As text it is what `cfi2sframe trace` prints.
    """

    space: AddressSpace
    threads: tuple[Trace, ...]

    def __repr__(self) -> str:
        return f"<Traced: {counted(len(self.threads), 'thread')}>"

    def __str__(self) -> str:
        death = self.space.snapshot.death
        lines = ["", *_death_text(death)] if death is not None else []
        for thread, frames in self._threads():
            lines += ["", f"thread {thread.thread_id}", *map(_frame_text, frames)]
            lines.append(f"end: {thread.ending.kind}: {printable(thread.ending.detail)}")
        return "\n".join(lines[1:])

    def json(self, **origin: str | int) -> str:
        """Return a JSON text. `origin` comes first: what was traced."""
        snapshot = self.space.snapshot
        data = {
            **origin,
            "machine": snapshot.arch.name,
            "death": snapshot.death and snapshot.death._asdict(),
            "warning": snapshot.warning,
            "threads": [
                {
                    "id": thread.thread_id,
                    "ending": thread.ending.kind,
                    "ending_detail": thread.ending.detail,
                    "frames": list(frames),
                }
                for thread, frames in self._threads()
            ],
        }
        return json.dumps(data) + "\n"

    def _threads(self) -> Iterator[tuple[Trace, Iterator[dict[str, Any]]]]:
        """Yield each thread's trace, and its frames as plain data."""
        symbols = (self.space.symbol_at(entry.named_pc) for thread in self.threads for entry in thread.entries)
        names = readable_names(symbol[0] for symbol in symbols if symbol)
        for thread in self.threads:
            yield thread, (self._frame(index, entry, names) for index, entry in enumerate(thread.entries))

    def _frame(self, index: int, entry: TraceEntry, names: dict[str, str]) -> dict[str, Any]:
        frame = entry.frame
        module = self.space.module_at(frame.lookup_pc)
        file = module.file if module else None
        name, distance = self.space.symbol_at(entry.named_pc) or (None, None)
        return {
            "index": index,
            "pc": frame.pc,
            "sp": frame.sp,
            "fp": frame.fp,
            "cfa": entry.cfa,
            "module": module and module.name,
            "build_id": (file and file.build_id.hex()) or None,
            "vaddr": module.vaddr_of(frame.pc) if module and file else None,
            "function": name and names.get(name, name),
            "symbol": name,
            "offset": None if distance is None else distance + frame.pc - entry.named_pc,
            "row": _row(entry, file),
        }


def _row(entry: TraceEntry, file: ModuleFile | None) -> dict[str, Any] | None:
    """Return the row that has found a frame's caller, or what has found it without one, as plain data."""
    row: dict[str, Any] = {"source": None, "version": None, "kind": None, "type": None, "signal": entry.is_signal}
    if entry.is_trampoline:
        return row | {"source": "trampoline"}
    if entry.is_null_call:
        return row | {"source": "null call" if entry.frame.pc < NULL_END else "wild call"}
    if entry.found is None:
        return None
    body = entry.found.function.body
    return row | {
        "source": "CFI alone" if entry.is_beyond_rows else file and file.source,
        "version": entry.found.version,
        "kind": "flexible" if body.is_flexible else "default",
        "type": "pcmask" if body.is_pcmask else "pcinc",
    }


#: The text for a caller that was found without a row, by its source.
_INSTEAD: Final = {
    "trampoline": "signal trampoline",
    "null call": "call through a null pointer",
    "wild call": "call through a wild pointer",
}


def _frame_text(frame: dict[str, Any]) -> str:
    row, text = frame["row"], f"#{frame['index']:<3} 0x{frame['pc']:016x}"
    if frame["function"] is not None:
        text += f" {printable(frame['function'])}+0x{frame['offset']:x}"
    text += " <signal handler called>" if row and row["signal"] else ""
    if frame["module"] is not None:
        text += f" in {printable(frame['module'])}"
        text += "" if frame["vaddr"] is None else f"+0x{frame['vaddr']:x}"
    if row is None or row["version"] is None:
        text += f" ({_INSTEAD[row['source']] if row else 'no row'})"
    else:
        words = [
            f"v{row['version']}",
            row["kind"],
            *["pcmask"] * (row["type"] == "pcmask"),
            *["signal"] * row["signal"],
        ]
        text += f" ({' '.join(words)}, {row['source']})"
    return f"{text} [{frame['build_id']}]" if frame["build_id"] else text


def _death_text(death: Death) -> Iterator[str]:
    if death.command:
        yield f"command: {printable(death.command)}"
    if death.signal:
        known = signal.Signals(death.signal).name if death.signal in set(signal.Signals) else str(death.signal)
        code = "" if death.code is None else f", code {death.code}"
        address = "" if death.address is None else f", address 0x{death.address:x}"
        yield f"signal: {known}{code}{address}, thread {death.thread_id}"


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
        threads = [each for each in snapshot.threads if thread in (None, each[0])]
        if not threads:
            raise RequestError(f"no thread {thread}; there are {', '.join(str(each) for each, _ in snapshot.threads)}")
        return _trace(AddressSpace(snapshot, store, open_file, root), threads)


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


def trace_process(
    pid: int, *, thread: int | None = None, store: FileStore | None = None, sysroot: str | os.PathLike[str] = ""
) -> Traced:
    """Trace the threads of a live process, or one by its id.

    It is stopped only while registers and stacks are copied. A frame on memory that was not copied (below an alternate
    signal stack, for one) makes it stop again, with that memory in the next copy. Give several samples of the same
    programs one `store`: it keeps what was converted. Files are looked for below `sysroot`, or where the process sees
    them. Raises `InputError` when the process cannot be traced, or has no such thread.
    """
    store, root = store or FileStore(), checked_path(sysroot)
    open_file = partial(store.open, root=root) if root else partial(_open_mapped, store, pid)
    with with_file_name(f"process {pid}"), closing(Process(pid)) as process:
        stops = 0
        while True:
            stops, wanted = stops + 1, set(process.wanted)
            snapshot = process.copy(thread)
            traced = _trace(AddressSpace(snapshot, store, open_file, root), snapshot.threads)
            if stops == _MAX_STOPS or process.wanted == wanted:
                return traced


def _open_mapped(store: FileStore, pid: int, path: str) -> ModuleFile | str:
    """Open a file that a process has mapped, below the root that it has changed to, if it is there.

    The kernel lists paths from the top of the process's mount namespace. A link below the process's root is a link of
    the process, and does not lead out of that root. What was deleted, replaced, or never had a path is opened by the
    mapping itself, where that is permitted.
    """
    root = f"/proc/{pid}/root"
    try:
        own = os.readlink(root)
    except OSError as error:
        return reason_of(error)
    for link in _links_to(pid, path) if path.endswith(DELETED) else ():
        file = store.open(link)
        if not isinstance(file, str):
            return file
    if path.startswith(f"{own}/"):
        return store.open(path.removeprefix(own), root)
    return store.open(path, root + "/.." * _MAX_ROOT_DEPTH)


def _links_to(pid: int, path: str) -> Iterator[str]:
    """Yield the kernel's links to a file that a process has mapped: as its program, and by addresses (for root)."""
    links = [f"/proc/{pid}/exe"]
    with suppress(OSError):
        links += [f"/proc/{pid}/map_files/{name}" for name in os.listdir(f"/proc/{pid}/map_files")]
    for link in links:
        with suppress(OSError):
            if os.readlink(link) == path:
                yield link


def _trace(space: AddressSpace, threads: Iterable[tuple[int, Frame]]) -> Traced:
    traces: list[Trace] = []
    for thread_id, frame in threads:
        try:
            trace = space.walk(frame)
        except (ChangedError, CostError):
            # Files are looked at apart, so it is the core that has changed, or all that costs too much.
            raise
        except Exception as error:  # noqa: BLE001 - the last handler of a thread
            trace = Trace((TraceEntry(frame),), Ending("internal-error", reason_of(error)))
        traces.append(trace._replace(thread_id=thread_id))
    return Traced(space, tuple(traces))
