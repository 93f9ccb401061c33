# SPDX-License-Identifier: Apache-2.0
"""The snapshot of a process or a core that a trace needs, and the copy of a live process, stopped for a moment.

Ptrace(2) gives the registers. Stacks are copied; memory that the process cannot write to is read when it is needed.
"""

import ctypes
import errno
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from cfi2sframe.abi import Arch, arch_of_elf
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, FileHeader, machine_name, parse_file_header
from cfi2sframe.errors import ElfError, InputError
from cfi2sframe.range_map import Span, united
from cfi2sframe.trace.frames import DEFAULT_PAC_MASK, NT_PRFPREG, NT_PRSTATUS, Frame, ReadMemory, topmost_frame

_Record = TypeVar("_Record", bound=tuple[object, ...])

PAGE_SIZE: Final = 0x1000
_BUILD_ID_SIZE: Final = 20

#: Types of notes of cores that are also ptrace's sets of registers.
NT_ARM_PAC_MASK: Final = 0x406

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
#: The most looks for new threads, which may appear while others are being seized.
_MAX_ROUNDS: Final = 100
#: The most bytes that are copied of one stack at a time; the next copy has what was missing of a deeper one.
_MAX_COPY_SIZE: Final = 8 << 20
#: Bytes below SP that a function may use on some ABIs.
_RED_ZONE_SIZE: Final = 128


def last_from(records: Sequence[_Record], address: int) -> _Record | None:
    """Return the last of some records, ordered by the address in their first field, that starts at or before one."""
    index = bisect_right(records, address, key=itemgetter(0)) - 1
    return records[index] if index >= 0 else None


class Memory:
    """Pieces of memory: addresses, and the bytes from there on. They do not overlap."""

    def __init__(self, pieces: Iterable[tuple[int, FileData]]) -> None:
        self.pieces = sorted(pieces, key=itemgetter(0))

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None where some are missing; they may span pieces."""
        found = b""
        while len(found) < size:
            start, data = last_from(self.pieces, address + len(found)) or (0, b"")
            skipped = address + len(found) - start
            part = bytes(data[skipped : skipped + size - len(found)])
            if not part:
                return None
            found += part
        return found


class FileMapping(NamedTuple):
    """Addresses `[start, end)` hold a file's bytes from `file_offset` on.

    `build_id` is that of the file that was mapped, where a profiler recorded it (see `padded_build_id`).
    """

    start: int
    end: int
    file_offset: int
    path: str
    is_writable: bool = False
    build_id: bytes = b""


class Death(NamedTuple):
    """The signal that ended a process, 0 without one, the thread that received it, and the command line.

    `code` is the signal's si_code, `address` what it was about (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP); None where
    these are not known.
    """

    signal: int
    code: int | None
    address: int | None
    thread_id: int
    command: str


def padded_build_id(build_id: bytes) -> bytes:
    """Return a build-id for comparisons: profilers store 20 bytes, the first ones or with zeros at the end."""
    return build_id[:_BUILD_ID_SIZE].ljust(_BUILD_ID_SIZE, b"\0")


class Snapshot(NamedTuple):
    """A core or a process. `auxv` has the values of the auxiliary vector by type.

    `read` reads what the process's own memory holds (a core's contents, or copies); without it a file is not compared
    with what was mapped, and what has no file (the vDSO) is not known. `threads` have their topmost frames by id.
    `pac_mask` has the bits of pointer authentication codes. `no_file_hint` ends the message about an address of no
    file. `code` has the starts and ends of memory that can be executed, where that is known. `death` is how the process
    of a core ended, `warning` what is wrong with the core.
    """

    arch: Arch
    mappings: Sequence[FileMapping]
    read: ReadMemory = lambda _address, _size: None
    threads: Sequence[tuple[int, Frame]] = ()
    auxv: Mapping[int, int] = MappingProxyType({})
    pac_mask: int = DEFAULT_PAC_MASK
    no_file_hint: str = ""
    code: Sequence[tuple[int, int]] | None = None
    death: Death | None = None
    warning: str = ""


def arch_of_header(header: FileHeader) -> Arch:
    """Return the ABI of a file. Raises `ElfError` where SFrame is not defined for it."""
    arch = arch_of_elf(header.machine, header.byte_order)
    if arch is None:
        raise ElfError(f"SFrame is not defined for {machine_name(header.machine, header.byte_order)}")
    return arch


def auxv_of(data: bytes, arch: Arch) -> dict[int, int]:
    """Return the values of an auxiliary vector by type."""
    return dict(struct.iter_unpack(arch.byte_order + "QQ", data[: len(data) // 16 * 16]))


def pac_mask_of(data: bytes, arch: Arch) -> int:
    """Return the mask of code addresses, which follows that of data addresses."""
    return int(struct.unpack_from(arch.byte_order + "QQ", data)[1]) if len(data) >= 16 else DEFAULT_PAC_MASK


class Process:
    """A process to copy. `wanted` are spans beside the stacks from SP upwards: what was read, and no copy had."""

    def __init__(self, pid: int) -> None:
        self.wanted: set[Span] = set()
        self.memory = Memory(())
        self._pid = pid
        self._mappings: list[FileMapping] = []
        self._code: list[Span] = []
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
        # To the kernel, a tracer is a thread. When it ends, the kernel detaches also what did not stop.
        with ThreadPoolExecutor(max_workers=1) as tracer:
            threads, pac_mask = tracer.submit(self._copy, arch, thread_id).result()
        files = [mapping for mapping in self._mappings if mapping.path.startswith("/")]
        auxv = auxv_of(_bytes_of(self._pid, "auxv"), arch)
        return Snapshot(arch, files, self.read, threads, auxv, pac_mask, code=self._code)

    def _copy(self, arch: Arch, thread_id: int | None) -> tuple[list[tuple[int, Frame]], int]:
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
            lines = [line for line in _bytes_of(self._pid, "maps").split(b"\n") if line]
            self._mappings = [_mapping(line) for line in lines]
            permissions = [line.split(None, 2)[1] for line in lines]
            self._code = [Span(m.start, m.end) for m, p in zip(self._mappings, permissions, strict=True) if b"x" in p]
            spans = united([*(self._span(frame.sp) for _, frame in threads), *self.wanted])
            self.memory = Memory((start, self._read(start, end - start)) for start, end in spans)
        return threads, pac_mask

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


def _mapping(line: bytes) -> FileMapping:
    """Return a mapping; its path is empty, or a name in brackets, where it is of no file."""
    addresses, permissions, offset, _device, _inode, *path = line.split(None, 5)
    start, end = (int(word, 16) for word in addresses.split(b"-"))
    # The kernel escapes newlines in paths.
    name = path[0].replace(rb"\012", b"\n") if path else b""
    return FileMapping(start, end, int(offset, 16), os.fsdecode(name), b"w" in permissions)


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
    """Return the id of what traces a thread; 0 without one."""
    for line in _bytes_of(thread, "status").splitlines():
        if line.startswith(b"TracerPid:"):
            return int(line.split()[1])
    return 0


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


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return library


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    return int(_libc().ptrace(request, thread, address, data))
