# SPDX-License-Identifier: Apache-2.0
"""A live process: its copy, made while it is stopped for a moment, and the trace of its threads.

Ptrace(2) gives the registers. Stacks are copied; memory that the process cannot write to is read when it is needed.
"""

import ctypes
import errno
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, parse_file_header
from cfi2sframe.errors import InputError, checked_path, reason_of, with_file_name
from cfi2sframe.range_map import Span, united
from cfi2sframe.trace.frames import NT_PRFPREG, NT_PRSTATUS, Frame, topmost_frame
from cfi2sframe.trace.snapshot import (
    NT_ARM_PAC_MASK,
    PAGE_SIZE,
    FileMapping,
    Memory,
    Snapshot,
    arch_of_header,
    auxv_of,
    last_from,
    pac_mask_of,
)
from cfi2sframe.trace.space import DELETED, AddressSpace
from cfi2sframe.trace.store import FileStore, ModuleFile
from cfi2sframe.trace.traced import Traced, trace_threads

_PTRACE_DETACH: Final = 17
_PTRACE_GETREGSET: Final = 0x4204
_PTRACE_SEIZE: Final = 0x4206
_PTRACE_INTERRUPT: Final = 0x4207
_WALL: Final = 0x40000000
_NEEDED: Final = (
    "tracing needs the user of the process, or root, a kernel.yama.ptrace_scope that allows it, and that no other "
    "process traces it"
)
#: The longest wait for a thread to stop. One that waits for a device, or for its vfork child, does not stop.
_STOP_SECONDS: Final = 5.0
_MAX_REGSET_SIZE: Final = 4096
#: The most searches for new threads, which may appear while others are being seized.
_MAX_ROUNDS: Final = 100
#: The most bytes that are copied of one stack at a time; the next copy has what was missing of a deeper one.
_MAX_COPY_SIZE: Final = 8 << 20
#: Bytes below SP that a function may use on some ABIs.
_RED_ZONE_SIZE: Final = 128
#: The most stops of a process. Each copies the memory of frames that the copy before it lacked (alternate signal
#: stacks, stacks of many megabytes).
_MAX_STOPS: Final = 5
#: The deepest root directory of a process, in folders.
_MAX_ROOT_DEPTH: Final = 64


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
    open_file = None if root else partial(_open_mapped, store, pid)
    with with_file_name(f"process {pid}"), closing(Process(pid)) as process:
        stop_count = 0
        while True:
            stop_count, wanted = stop_count + 1, set(process.wanted)
            snapshot = process.copy(thread)
            traced = trace_threads(AddressSpace(snapshot, store, open_file, root), snapshot.threads)
            if stop_count == _MAX_STOPS or process.wanted == wanted:
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


class Process:
    """A process to copy. `wanted` are spans beside the stacks from SP upwards: those that a trace read in vain."""

    def __init__(self, pid: int) -> None:
        self.wanted: set[Span] = set()
        self.memory = Memory(())
        self._pid = pid
        self._mappings: list[FileMapping] = []
        self._memory_file = -1

    def close(self) -> None:
        """Close the file of its memory."""
        if self._memory_file >= 0:
            os.close(self._memory_file)

    def copy(self, thread_id: int | None = None) -> Snapshot:
        """Stop the process (or one thread), copy registers, mappings, stacks and what else is wanted, and resume it.

        Raises `InputError` when there is none, when that is not permitted, or its machine is not supported.
        """
        arch = arch_of_header(parse_file_header(_bytes_of(self._pid, "exe", FILE_HEADER_SIZE)))
        # To the kernel, the tracer is a thread. When it ends, the kernel also detaches from threads that did not stop.
        with ThreadPoolExecutor(max_workers=1) as tracer:
            return tracer.submit(self._copy, arch, thread_id).result()

    def _copy(self, arch: Arch, thread_id: int | None) -> Snapshot:
        with stopped_threads(self._pid, thread_id) as stopped:
            if self._memory_file < 0:
                # Without it, traces end where they need memory.
                with suppress(OSError):
                    self._memory_file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            threads: list[tuple[int, Frame]] = []
            for thread in stopped:
                frame = topmost_frame({kind: _registers(thread, kind) for kind in (NT_PRSTATUS, NT_PRFPREG)}, arch)
                if frame is None:
                    raise InputError(f"thread {thread}: its registers cannot be read, or it is no 64-bit program")
                threads.append((thread, frame))
            pac_mask = pac_mask_of(_registers(stopped[0], NT_ARM_PAC_MASK), arch)
            listed = list(listed_mappings(self._pid))
            self._mappings = [mapping for mapping, _ in listed]
            spans = united([*(self._span(frame.sp) for _, frame in threads), *self.wanted])
            self.memory = Memory((start, self._read(start, end - start)) for start, end in spans)
        files = [mapping for mapping in self._mappings if mapping.path.startswith("/")]
        code = [mapping[:2] for mapping, is_executable in listed if is_executable]
        return Snapshot(
            arch, files, self.read, threads, auxv_of(_bytes_of(self._pid, "auxv"), arch), pac_mask, code=code
        )

    def _span(self, address: int) -> Span:
        """Return what to copy of a stack: from SP, or from a frame that was missing, upwards."""
        mapping = self._mapping_at(address)
        if mapping is None:
            return Span(0, 0)
        start = max(mapping.start, (address - _RED_ZONE_SIZE) // PAGE_SIZE * PAGE_SIZE)
        return Span(start, min(mapping.end, start + _MAX_COPY_SIZE))

    def _mapping_at(self, address: int) -> FileMapping | None:
        # They ascend, as in the kernel's list.
        mapping = last_from(self._mappings, address)
        return None if mapping is None or address >= mapping.end else mapping

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None: of what was copied, or of what cannot be written to."""
        data = self.memory.read(address, size)
        mapping = self._mapping_at(address) if data is None else None
        if mapping is None:
            return data
        if mapping.is_writable:
            self.wanted.add(self._span(address))
            return None
        data = self._read(address, size)
        return data if len(data) == size else None

    def _read(self, address: int, size: int) -> bytes:
        # Addresses and sizes come from the process, and may be wrong.
        with suppress(OSError, OverflowError):
            return os.pread(self._memory_file, size, address)
        return b""


def _bytes_of(pid: int, name: str, size: int = -1) -> bytes:
    """Return the contents of a file in the directory of a process in /proc. Raises `InputError`."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(size)
    except FileNotFoundError:
        raise InputError("no such process, or a thread of the kernel") from None
    except OSError as error:
        raise InputError(f"/proc/{pid}/{name} cannot be read: {error.strerror}") from None


def resident_size(pid: int) -> int:
    """Return the bytes of memory that a process occupies. Raises `InputError`."""
    return int(_bytes_of(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listed_mappings(pid: int) -> Iterator[tuple[FileMapping, bool]]:
    """Yield a process's mappings and whether they can be executed; paths are empty, or in brackets, without a file."""
    for line in _bytes_of(pid, "maps").split(b"\n")[:-1]:
        addresses, permissions, offset, _device, _inode, *path = line.split(None, 5)
        start, end = (int(word, 16) for word in addresses.split(b"-"))
        # The kernel escapes newlines in paths.
        name = os.fsdecode(path[0].replace(rb"\012", b"\n") if path else b"")
        yield FileMapping(start, end, int(offset, 16), name, b"w" in permissions), b"x" in permissions


@contextmanager
def stopped_threads(pid: int, only: int | None = None) -> Iterator[list[int]]:
    """Stop the threads of a process, or `only` one, while the block runs; it gets their ids, the main thread first.

    They are seized: no signal is sent, and a process that was stopped before stays stopped. Raises `InputError` when
    they cannot be stopped; then all are resumed.
    """
    seized: set[int] = set()
    #: Stopped threads, and the signal that each was about to receive.
    stopped: dict[int, int] = {}
    try:
        for _ in range(_MAX_ROUNDS):
            threads: list[int] = []
            with suppress(FileNotFoundError):
                threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            new = [thread for thread in threads if only in (None, thread) and thread not in seized]
            if not new:
                break
            deadline = time.monotonic() + _STOP_SECONDS
            for thread in new:
                failed = _ptrace(_PTRACE_SEIZE, thread) < 0
                if failed and ctypes.get_errno() != errno.ESRCH:
                    reason = os.strerror(ctypes.get_errno())
                    tracer = _tracer_of(thread)
                    raise InputError(f"{reason}: process {tracer} traces it" if tracer else f"{reason}: {_NEEDED}")
                seized.add(thread)
                _ptrace(_PTRACE_INTERRUPT, thread)
            for thread in new:
                _wait(thread, deadline, stopped)
        if not stopped:
            raise InputError("no such process" if only in (None, pid) else f"no thread {only} in this process")
        yield sorted(stopped, key=lambda thread: (thread != pid, thread))
    finally:
        for thread in seized - stopped.keys():
            # Only a stopped thread can be detached.
            with suppress(InputError):
                _wait(thread, time.monotonic() + 0.1, stopped)
        for thread, signal_number in stopped.items():
            _ptrace(_PTRACE_DETACH, thread, 0, signal_number)


def _tracer_of(thread: int) -> int:
    """Return the id of the tracer of a thread; 0 without one."""
    tracer = re.search(rb"^TracerPid:\s*(\d+)", _bytes_of(thread, "status"), re.MULTILINE)
    return int(tracer[1]) if tracer else 0


def _wait(thread: int, deadline: float, stopped: dict[int, int]) -> None:
    """Wait until a thread has stopped, or ended. Raises `InputError` when it does neither."""
    while True:
        try:
            waited, status = os.waitpid(thread, _WALL | os.WNOHANG)
        except ChildProcessError:
            return
        if waited:
            if os.WIFSTOPPED(status):
                # A stop caused by ptrace has an event number in the upper half; otherwise a signal caused it.
                stopped[thread] = 0 if status >> 16 else os.WSTOPSIG(status)
            return
        if time.monotonic() > deadline:
            raise InputError(f"thread {thread} does not stop; it waits in the kernel")
        time.sleep(1e-4)


def _registers(thread: int, note_type: int) -> bytes:
    """Return the registers of a kind (NT_PRSTATUS, ...) of a stopped thread; none when it has none of that kind."""
    buffer = ctypes.create_string_buffer(_MAX_REGSET_SIZE)
    # struct iovec
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), _MAX_REGSET_SIZE)
    failed = _ptrace(_PTRACE_GETREGSET, thread, note_type, ctypes.addressof(vector)) < 0
    return b"" if failed else buffer.raw[: vector[1]]


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    words = map(ctypes.c_long, (request, thread, address, data))
    return int(ctypes.CDLL(None, use_errno=True).ptrace(*words))
