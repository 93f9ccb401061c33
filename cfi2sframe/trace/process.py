# SPDX-License-Identifier: Apache-2.0
"""Live processes: a snapshot of registers and stacks; read-only memory is read when it is needed."""

from __future__ import annotations

import os
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.arch import Arch, arch_of_elf
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, machine_name, parse_file_header
from cfi2sframe.elf.ranges import Span, united
from cfi2sframe.errors import ElfError, InputError
from cfi2sframe.trace.elfcore import NT_ARM_PAC_MASK, NT_PRFPREG, NT_PRSTATUS, parse_auxv, parse_pac_mask
from cfi2sframe.trace.kernel_registers import REGISTERS_SIZE, topmost_frame
from cfi2sframe.trace.memory import Memory, MemoryPiece
from cfi2sframe.trace.ptrace import StoppedThreads
from cfi2sframe.trace.space import FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from cfi2sframe.trace.frame import Frame

#: The most bytes that are copied of one stack at a time; the next snapshot has what was missing of a deeper one.
MAX_COPY_SIZE: Final = 8 << 20
#: The most bytes that are copied in all beyond the resident size: stacks may be mapped and never touched.
_COPY_ALLOWANCE: Final = 64 << 20
_PAGE_MASK: Final = 0xFFF
#: The most bytes that are read at once: sizes come from the process, and may be wrong.
_MAX_READ_SIZE: Final = 1 << 28
#: Bytes below SP that a function may use on some ABIs.
_RED_ZONE_SIZE: Final = 128


class Mapping(NamedTuple):
    """A line of /proc/PID/maps. `path` is empty, a path, or a name in brackets."""

    start: int
    end: int
    is_writable: bool
    file_offset: int
    path: str


class LiveThread(NamedTuple):
    """A thread's id, its registers when it was stopped, and its mask of pointer authentication codes."""

    id: int
    frame: Frame
    pac_mask: int | None


class Snapshot(NamedTuple):
    """The registers, mappings and memory that were copied while the process was stopped."""

    threads: tuple[LiveThread, ...]
    mappings: tuple[Mapping, ...]
    memory: Memory


class Process:
    """A process to trace. Raises `InputError` when there is none, or its machine is not supported."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.arch = _arch_of(pid)
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise InputError("no such process") from None
        except OSError:
            # Without permission to trace there is none to read; `copy` gives the reason.
            self._memory = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._memory >= 0:
            os.close(self._memory)

    def copy(self, thread_id: int | None = None, extra: Iterable[Span] = ()) -> Snapshot:
        """Stop the process (or one thread), copy registers, stacks and `extra` memory, and resume it.

        Raises `InputError` when that is not permitted.
        """
        # To the kernel, a tracer is a thread. When it ends, the kernel detaches whatever is still attached.
        with ThreadPoolExecutor(max_workers=1) as tracer:
            return tracer.submit(self._copy, thread_id, tuple(extra)).result()

    def _copy(self, thread_id: int | None, extra: tuple[Span, ...]) -> Snapshot:
        with StoppedThreads(self.pid, thread_id) as stopped:
            threads = tuple(self._thread(stopped, thread) for thread in stopped.threads)
            mappings = read_mappings(self.pid)
            ranges = united([*(self._stack(thread.frame.sp, mappings) for thread in threads), *extra])
            allowed = resident_size(self.pid) + _COPY_ALLOWANCE
            pieces: list[MemoryPiece] = []
            for wanted in ranges:
                piece = self._piece(wanted._replace(end=min(wanted.end, wanted.start + allowed)))
                allowed -= piece.size
                pieces.append(piece)
        return Snapshot(threads, mappings, Memory(pieces))

    def _thread(self, stopped: StoppedThreads, thread: int) -> LiveThread:
        registers = stopped.register_set(thread, NT_PRSTATUS)
        if registers is None or len(registers) < REGISTERS_SIZE[self.arch.elf_machine]:
            raise InputError(f"thread {thread}: its registers cannot be read, or it is no 64-bit program")
        frame = topmost_frame(registers, self.arch, stopped.register_set(thread, NT_PRFPREG))
        if frame is None:
            raise InputError(f"thread {thread}: its registers cannot be read")
        masks = stopped.register_set(thread, NT_ARM_PAC_MASK) if self.arch.ra_may_be_signed else None
        return LiveThread(thread, frame, parse_pac_mask(masks, self.arch))

    def _stack(self, sp: int, mappings: tuple[Mapping, ...]) -> Span:
        """Return the part of the mapping at SP to copy: from SP upwards."""
        mapping = mapping_at(mappings, sp)
        if mapping is None:
            return Span(0, 0)
        start = max(mapping.start, (sp - _RED_ZONE_SIZE) & ~_PAGE_MASK)
        return Span(start, min(mapping.end, start + MAX_COPY_SIZE))

    def _piece(self, wanted: Span) -> MemoryPiece:
        size = min(wanted.end - wanted.start, _MAX_READ_SIZE)
        data = self.read(wanted.start, size, exactly=False) or b""
        return MemoryPiece(wanted.start, len(data), data)

    def read(self, address: int, size: int, *, exactly: bool = True) -> bytes | None:
        """Return memory as it is now; None when it cannot be read, or with `exactly` not all of it."""
        if self._memory < 0 or address < 0 or not 0 < size <= _MAX_READ_SIZE or address + size >= 1 << 63:
            return None
        try:
            data = os.pread(self._memory, size, address)
        except OSError:
            return None
        return data if len(data) == size or not exactly else None

    def auxv(self) -> dict[int, int]:
        """Return the auxiliary vector; empty where it cannot be read."""
        try:
            with open(f"/proc/{self.pid}/auxv", "rb") as file:
                return parse_auxv(file.read(), self.arch)
        except OSError:
            return {}


def resident_size(pid: int) -> int:
    """Return the bytes of memory that a process occupies; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class SnapshotReader:
    """Reads a snapshot, and read-only memory from the process; `missed` are spans that should have been copied."""

    def __init__(self, process: Process, snapshot: Snapshot) -> None:
        self._process = process
        self._snapshot = snapshot
        self.missed: set[Span] = set()

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None."""
        data = self._snapshot.memory.read(address, size)
        if data is not None:
            return data
        mapping = mapping_at(self._snapshot.mappings, address)
        if mapping is None:
            return None
        if not mapping.is_writable:
            return self._process.read(address, size)
        start = address & ~_PAGE_MASK
        self.missed.add(Span(start, min(mapping.end, start + MAX_COPY_SIZE)))
        return None


def mapping_at(mappings: Sequence[Mapping], address: int) -> Mapping | None:
    """Return the mapping that holds an address; they ascend, as in the kernel's list."""
    index = bisect_right(mappings, address, key=_start_of) - 1
    return mappings[index] if index >= 0 and address < mappings[index].end else None


def _start_of(mapping: Mapping) -> int:
    return mapping.start


def read_mappings(pid: int) -> tuple[Mapping, ...]:
    """Return the mappings of a process. Raises `InputError` when that cannot be read."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return tuple(_mapping(line.rstrip(b"\n")) for line in file)
    except OSError as error:
        raise InputError(f"its memory map cannot be read: {error.strerror}") from None


def _mapping(line: bytes) -> Mapping:
    addresses, permissions, offset, _device, _inode, *path = line.split(None, 5)
    start, end = (int(word, 16) for word in addresses.split(b"-"))
    # The kernel escapes newlines in paths.
    name = path[0].replace(rb"\012", b"\n").decode("utf-8", "surrogateescape") if path else ""
    return Mapping(start, end, b"w" in permissions, int(offset, 16), name)


def file_mappings(mappings: Iterable[Mapping]) -> list[FileMapping]:
    """Return the mappings of files."""
    return [FileMapping(m.start, m.end, m.file_offset, m.path) for m in mappings if m.path.startswith("/")]


def _arch_of(pid: int) -> Arch:
    """Return the ABI of a process: that of its executable."""
    try:
        with open(f"/proc/{pid}/exe", "rb") as file:
            header = parse_file_header(file.read(FILE_HEADER_SIZE))
    except FileNotFoundError:
        raise InputError("no such process, or a thread of the kernel") from None
    except OSError as error:
        raise InputError(f"its executable cannot be read: {error.strerror}") from None
    arch = arch_of_elf(header.machine, header.byte_order)
    if arch is None:
        raise ElfError(f"SFrame is not defined for {machine_name(header.machine, header.byte_order)}")
    return arch
