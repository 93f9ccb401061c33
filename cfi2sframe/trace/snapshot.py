# SPDX-License-Identifier: Apache-2.0
"""The snapshot of a process or a core that a trace needs: memory, mapped files, topmost frames."""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from cfi2sframe.abi import Arch, arch_of_elf
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import FileHeader, machine_name
from cfi2sframe.errors import ElfError
from cfi2sframe.trace.frames import DEFAULT_PAC_MASK, Frame, ReadMemory

_Record = TypeVar("_Record", bound=tuple[object, ...])

PAGE_SIZE: Final = 0x1000
_BUILD_ID_SIZE: Final = 20
#: A type of notes of cores that is also a set of ptrace's registers.
NT_ARM_PAC_MASK: Final = 0x406


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
        content = b""
        while len(content) < size:
            start, data = last_from(self.pieces, address + len(content)) or (0, b"")
            skipped = address + len(content) - start
            part = bytes(data[skipped : skipped + size - len(content)])
            if not part:
                return None
            content += part
        return content


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

    `code` is the signal's si_code, `address` its si_addr (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP); None where these
    are not known.
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
