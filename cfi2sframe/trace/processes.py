# SPDX-License-Identifier: Apache-2.0
"""Live processes: a snapshot of registers and stacks; read-only memory is read when it is needed."""

from __future__ import annotations

import os
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.headers import FILE_HEADER_SIZE, parse_file_header
from cfi2sframe.elf.ranges import Span, united
from cfi2sframe.errors import InputError
from cfi2sframe.trace.cores import Stopped, arch_of_header, parse_auxv
from cfi2sframe.trace.kernel import REGISTER_SETS, stopped_thread
from cfi2sframe.trace.memory import Memory, MemoryPiece
from cfi2sframe.trace.space import FileMapping
from cfi2sframe.trace.syscalls import register_set, stopped_threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.trace.kernel import StoppedThread

#: The most bytes that are copied of one stack at a time; the next copy has what was missing of a deeper one.
_MAX_COPY_SIZE: Final = 8 << 20
#: The most bytes that are copied in all beyond the resident size: stacks may be mapped and never touched.
_COPY_ALLOWANCE: Final = 64 << 20
_PAGE_MASK: Final = 0xFFF
#: The most bytes that are read at once: sizes come from the process, and may be wrong.
_MAX_READ_SIZE: Final = 1 << 28
#: Bytes below SP that a function may use on some ABIs.
_RED_ZONE_SIZE: Final = 128


class Process:
    """A process to copy. Raises `InputError` when there is none, or its machine is not supported.

    `missed` are spans that were read since the last copy and should have been in it.
    """

    def __init__(self, pid: int) -> None:
        self.missed: set[Span] = set()
        self._folder = f"/proc/{pid}"
        self._pid = pid
        self._mappings: list[FileMapping] = []
        self._memory = Memory(())
        try:
            with open(f"{self._folder}/exe", "rb") as file:
                self.arch = arch_of_header(parse_file_header(file.read(FILE_HEADER_SIZE)))
        except FileNotFoundError:
            raise InputError("no such process, or a thread of the kernel") from None
        except OSError as error:
            raise InputError(f"its executable cannot be read: {error.strerror}") from None
        self._memory_file = -1
        # Without permission to trace there is none to read; `copy` gives the reason.
        with suppress(OSError):
            self._memory_file = os.open(f"{self._folder}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file of its memory."""
        if self._memory_file >= 0:
            os.close(self._memory_file)

    def copy(self, thread_id: int | None = None, extra: Iterable[Span] = ()) -> Stopped:
        """Stop the process (or one thread), copy registers, mappings, stacks and `extra` memory, and resume it.

        Raises `InputError` when that is not permitted.
        """
        # To the kernel, a tracer is a thread. When it ends, the kernel detaches whatever is still attached.
        with ThreadPoolExecutor(max_workers=1) as tracer:
            threads = tracer.submit(self._copy, thread_id, extra).result()
        self.missed = set()
        auxv = b""
        with suppress(OSError), open(f"{self._folder}/auxv", "rb") as file:
            auxv = file.read()
        files = [mapping for mapping in self._mappings if mapping.path.startswith("/")]
        return Stopped(self.arch, threads, files, parse_auxv(auxv, self.arch), self.read, lists_files=bool(files))

    def _copy(self, thread_id: int | None, extra: Iterable[Span]) -> list[StoppedThread]:
        with stopped_threads(self._pid, thread_id) as stopped:
            threads = [self._thread(thread) for thread in stopped]
            try:
                with open(f"{self._folder}/maps", "rb") as file:
                    self._mappings = [_mapping(line.rstrip(b"\n")) for line in file]
            except OSError as error:
                raise InputError(f"its memory map cannot be read: {error.strerror}") from None
            # From SP upwards.
            stacks = [self._span(thread.frame.sp - _RED_ZONE_SIZE, thread.frame.sp) for thread in threads]
            allowed = resident_size(self._pid) + _COPY_ALLOWANCE
            pieces: list[MemoryPiece] = []
            for start, end in united([*stacks, *extra]):
                data = self._read(start, min(end - start, allowed, _MAX_READ_SIZE))
                pieces.append(MemoryPiece(start, len(data), data))
                allowed -= len(data)
        self._memory = Memory(pieces)
        return threads

    def _thread(self, thread: int) -> StoppedThread:
        found = stopped_thread(thread, {kind: register_set(thread, kind) for kind in REGISTER_SETS}, self.arch)
        if found is None:
            raise InputError(f"thread {thread}: its registers cannot be read, or it is no 64-bit program")
        return found

    def _span(self, start: int, address: int) -> Span:
        """Return what to copy of the mapping at an address, from the page at `start` on."""
        mapping = self._mapping_at(address)
        if mapping is None:
            return Span(0, 0)
        start = max(mapping.start, start & ~_PAGE_MASK)
        return Span(start, min(mapping.end, start + _MAX_COPY_SIZE))

    def _mapping_at(self, address: int) -> FileMapping | None:
        # They ascend, as in the kernel's list.
        index = bisect_right(self._mappings, address, key=lambda mapping: mapping.start) - 1
        return self._mappings[index] if index >= 0 and address < self._mappings[index].end else None

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None: of what was copied, or of what cannot be written to."""
        data = self._memory.read(address, size)
        mapping = self._mapping_at(address) if data is None else None
        if mapping is None:
            return data
        if mapping.is_writable:
            self.missed.add(self._span(address, address))
            return None
        data = self._read(address, size)
        return data if len(data) == size else None

    def _read(self, address: int, size: int) -> bytes:
        if 0 <= address < (1 << 63) - size and 0 < size <= _MAX_READ_SIZE and self._memory_file >= 0:
            with suppress(OSError):
                return os.pread(self._memory_file, size, address)
        return b""


def resident_size(pid: int) -> int:
    """Return the bytes of memory that a process occupies; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _mapping(line: bytes) -> FileMapping:
    """Return a mapping; its path is empty, or a name in brackets, where it is of no file."""
    addresses, permissions, offset, _device, _inode, *path = line.split(None, 5)
    start, end = (int(word, 16) for word in addresses.split(b"-"))
    # The kernel escapes newlines in paths.
    name = path[0].replace(rb"\012", b"\n").decode("utf-8", "surrogateescape") if path else ""
    return FileMapping(start, end, int(offset, 16), name, b"w" in permissions)
