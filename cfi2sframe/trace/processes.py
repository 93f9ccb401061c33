# SPDX-License-Identifier: Apache-2.0
"""Live processes: a snapshot of registers and stacks, by ptrace(2); read-only memory is read when it is needed."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.headers import FILE_HEADER_SIZE, parse_file_header
from cfi2sframe.elf.ranges import Span, united
from cfi2sframe.errors import InputError
from cfi2sframe.trace.cores import Stopped, arch_of_header, parse_auxv
from cfi2sframe.trace.frames import NT_ARM_PAC_MASK, NT_PRFPREG, NT_PRSTATUS, thread_of_notes
from cfi2sframe.trace.space import PAGE_SIZE, FileMapping, Memory, last_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.abi import Arch
    from cfi2sframe.trace.frames import StoppedThread

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
#: How often new threads are looked for, which may appear while others are being seized.
_MAX_ROUNDS: Final = 100

#: The most bytes that are copied of one stack at a time; the next copy has what was missing of a deeper one.
_MAX_COPY_SIZE: Final = 8 << 20
#: The most bytes that are copied in all beyond the resident size: stacks may be mapped and never touched.
_COPY_ALLOWANCE: Final = 64 << 20
#: Bytes below SP that a function may use on some ABIs.
_RED_ZONE_SIZE: Final = 128


class Process:
    """A process to copy. `wanted` are spans beside the stacks from SP upwards: what was read, and no copy had."""

    def __init__(self, pid: int) -> None:
        self.wanted: set[Span] = set()
        self._pid = pid
        self._mappings: list[FileMapping] = []
        self._memory = Memory(())
        self._memory_file = -1

    def close(self) -> None:
        """Close the file of its memory."""
        if self._memory_file >= 0:
            os.close(self._memory_file)

    def copy(self, thread_id: int | None = None) -> Stopped:
        """Stop the process (or one thread), copy registers, mappings, stacks and what else is wanted, and resume it.

        Raises `InputError` when there is none, when that is not permitted, or its machine is not supported.
        """
        arch = arch_of_header(parse_file_header(_bytes_of(self._pid, "exe", FILE_HEADER_SIZE)))
        # To the kernel, a tracer is a thread. When it ends, the kernel detaches whatever is still attached.
        with ThreadPoolExecutor(max_workers=1) as tracer:
            threads = tracer.submit(self._copy, arch, thread_id).result()
        files = [mapping for mapping in self._mappings if mapping.path.startswith("/")]
        return Stopped(arch, threads, files, parse_auxv(_bytes_of(self._pid, "auxv"), arch), self.read)

    def _copy(self, arch: Arch, thread_id: int | None) -> list[StoppedThread]:
        with stopped_threads(self._pid, thread_id) as stopped:
            if self._memory_file < 0:
                # Without it, traces end where they need memory.
                with suppress(OSError):
                    self._memory_file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            threads = [_thread(thread, arch) for thread in stopped]
            self._mappings = [_mapping(line) for line in _bytes_of(self._pid, "maps").split(b"\n") if line]
            allowed = resident_size(self._pid) + _COPY_ALLOWANCE
            pieces: list[tuple[int, bytes]] = []
            for start, end in united([*(self._span(thread.frame.sp) for thread in threads), *self.wanted]):
                data = self._read(start, min(end - start, allowed))
                pieces.append((start, data))
                allowed -= len(data)
        self._memory = Memory(pieces)
        return threads

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
        data = self._memory.read(address, size)
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
    """Return what the kernel says of a process. Raises `InputError`."""
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


def _thread(thread: int, arch: Arch) -> StoppedThread:
    sets = {kind: _register_set(thread, kind) for kind in (NT_PRSTATUS, NT_PRFPREG, NT_ARM_PAC_MASK)}
    found = thread_of_notes(thread, sets, arch)
    if found is None:
        raise InputError(f"thread {thread}: its registers cannot be read, or it is no 64-bit program")
    return found


def _mapping(line: bytes) -> FileMapping:
    """Return a mapping; its path is empty, or a name in brackets, where it is of no file."""
    addresses, permissions, offset, _device, _inode, *path = line.split(None, 5)
    start, end = (int(word, 16) for word in addresses.split(b"-"))
    # The kernel escapes newlines in paths.
    name = path[0].replace(rb"\012", b"\n").decode("utf-8", "surrogateescape") if path else ""
    return FileMapping(start, end, int(offset, 16), name, b"w" in permissions)


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
            new = [thread for thread in _threads(pid) if only in (None, thread) and thread not in seized]
            if not new:
                break
            deadline = time.monotonic() + _STOP_SECONDS
            for thread in new:
                seized.add(thread)
                if _ptrace(_PTRACE_SEIZE, thread) >= 0:
                    _ptrace(_PTRACE_INTERRUPT, thread)
                elif ctypes.get_errno() != errno.ESRCH:
                    raise InputError(f"{os.strerror(ctypes.get_errno())}: {_NEEDED}")
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


def _register_set(thread: int, note_type: int) -> bytes:
    """Return the registers of a kind (NT_PRSTATUS, ...) of a stopped thread; none when it has none of that kind."""
    buffer = ctypes.create_string_buffer(_MAX_REGSET_SIZE)
    # struct iovec
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), _MAX_REGSET_SIZE)
    failed = _ptrace(_PTRACE_GETREGSET, thread, note_type, ctypes.addressof(vector)) < 0
    return b"" if failed else buffer.raw[: vector[1]]


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_void_p(address), ctypes.c_void_p(data))
    return int(library.ptrace(*words))


def _threads(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _wait(thread: int, deadline: float, stopped: dict[int, int]) -> None:
    """Wait until a thread has stopped, or ended. Raises `InputError` when it does neither."""
    pause = 1e-5
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
        time.sleep(pause)
        pause = min(pause * 2, 0.01)
