# SPDX-License-Identifier: Apache-2.0
"""The files that are mapped into a process: each read once, with its rows and its functions.

Addresses are virtual addresses of the files. A file that cannot be used costs no other one: each has limits of its own,
where the job has limits. What is read from memory is the job's, and has the job's limits.
"""

from __future__ import annotations

import ctypes
import os
import stat
from bisect import bisect_right
from contextlib import nullcontext, suppress
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from cfi2sframe.api import decode_existing, decode_made
from cfi2sframe.conversion import Options
from cfi2sframe.elf.constants import STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import read_file, stored_size
from cfi2sframe.errors import CostError, InputError, reason_of
from cfi2sframe.guard import part
from cfi2sframe.trace.frames import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.trace.frames import EndingKind

_T = TypeVar("_T")

_FUNCTIONS: Final = (STT_FUNC, STT_GNU_IFUNC)
#: How many symbols before an address are looked at: a function may hold labels and other functions.
_CANDIDATES: Final = 8

#: openat2(2), which Python has no function for, on all of our ABIs.
_SYS_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10


class FoundSymbol(NamedTuple):
    """The function that holds an address: its linkage name, and the address's distance from its start."""

    name: str
    offset: int

    def __repr__(self) -> str:
        return f"{self.name}+0x{self.offset:x}"


class ModuleFile(NamedTuple):
    """A file, its rows or why it has none, and its functions: start, end and name, by address.

    `source` says what the rows are of: the file's section, or its CFI, converted where it has no section.
    """

    image: ElfImage
    source: Literal["file", "converted"]
    rows: Section | Ending
    functions: Sequence[tuple[int, int, str]]

    def symbol_at(self, vaddr: int) -> FoundSymbol | None:
        """Return the function at an address."""
        count = bisect_right(self.functions, vaddr, key=itemgetter(0))
        for start, end, name in reversed(self.functions[max(0, count - _CANDIDATES) : count]):
            if vaddr < end:
                return FoundSymbol(name, vaddr - start)
        return None


def _rows_of(image: ElfImage, source: str, options: Options) -> Section | Ending:
    kind: EndingKind = "unusable-section" if source == "file" else "unusable-module"
    try:
        section = decode_existing(image) if source == "file" else decode_made(image, options)
    except InputError as error:
        return Ending(kind, f"{image.name}: {error.detail}")
    if section.arch != image.arch:
        return Ending(kind, f"{image.name}: the section is for {section.arch.name}")
    return section


def _functions_of(image: ElfImage) -> list[tuple[int, int, str]]:
    """Return the functions in .symtab and .dynsym, one for each address.

    One of unknown size reaches to the next symbol or its section's end.
    """
    best: dict[int, tuple[int, int, str]] = {}
    for table in image.symbol_tables:
        # Names are optional: a damaged or truncated table has none.
        with suppress(InputError):
            for symbol in image.symbols(table):
                # AArch64's mapping symbols ($x, $d) mark instructions and data; they are no names.
                is_label = symbol.type == STT_NOTYPE and not symbol.name.startswith("$")
                if symbol.vaddr is None or not symbol.name or not (symbol.type in _FUNCTIONS or is_label):
                    continue
                # Functions are preferred to labels, then symbols with a size, then the first.
                rank = is_label * 2 + (symbol.size == 0)
                if symbol.vaddr not in best or rank < best[symbol.vaddr][0]:
                    best[symbol.vaddr] = rank, symbol.size, symbol.name
    starts = sorted(best)
    functions: list[tuple[int, int, str]] = []
    for start, following in zip_longest(starts, starts[1:]):
        _, size, name = best[start]
        if size == 0:
            code = image.code_range_of(start)
            end = start if code is None else code.end_vaddr
            size = (end if following is None else min(end, following)) - start
        functions.append((start, start + size, name))
    return functions


class FileStore:
    """Loads each file once, for any number of threads, processes or samples that it is mapped in.

    `version` is the SFrame version that CFI is converted to, `source` the CFI that is asked of each file (see
    `Options`).
    """

    def __init__(self, version: int = 3, source: CfiKind | None = None) -> None:
        # These rows are for our own look-up, which knows all errata, and nobody stores them: they need not be few.
        self._options = Options(version, 2 if version == 2 else None, source, level=0)
        self._by_identity: dict[tuple[int, int, int], ModuleFile | str] = {}

    def open(self, path: str, root: str = "") -> ModuleFile | str:
        """Return the file at a path below a root directory, ours if none is given; or why it cannot be used."""
        try:
            descriptor = _open_inside(root, path) if root else os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                return self._open(descriptor, path)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            return (error.strerror if isinstance(error, OSError) else None) or str(error)

    def _open(self, descriptor: int, name: str) -> ModuleFile | str:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            # A pipe or a device, as a damaged core may list it, would block its reader.
            return "not a regular file, or empty"
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if identity not in self._by_identity:
            # The file that was found, even if another one has its name now.
            data = read_file(f"/proc/self/fd/{descriptor}")
            self._by_identity[identity] = alone(stored_size(data), partial(self._read, data, name))
        return self._by_identity[identity]

    def of_memory(self, data: bytes, name: str) -> ModuleFile | str:
        """Return the file whose bytes were read from memory, or why it cannot be used."""
        return alone(None, partial(self._read, data, name))

    def _read(self, data: FileData, name: str) -> ModuleFile | str:
        image = ElfImage(data, name)
        if image.is_relocatable:
            return "an object, which is never mapped"
        section = image.sframe_section
        has_section = (section is not None and section.size > 0) or image.sframe_segment is not None
        source: Literal["file", "converted"] = "file" if has_section else "converted"
        return ModuleFile(image, source, _rows_of(image, source, self._options), _functions_of(image))


def _open_inside(root: str, path: str) -> int:
    """Return a descriptor (O_PATH) of the file at a path below a root directory, which no link or `..` leads out of.

    Raises `OSError`, also where the kernel is older than 5.6.
    """
    # struct open_how: flags, mode, resolve
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        name, size = ctypes.c_char_p(os.fsencode(path)), ctypes.c_size_t(ctypes.sizeof(how))
        opened = syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_long(folder), name, ctypes.byref(how), size)
        if opened < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(opened)
    finally:
        os.close(folder)


def alone(limit_size: int | None, work: Callable[[], _T]) -> _T | str:
    """Return what work on one file returns, or the reason why it failed, whatever was raised.

    It has the limits of a file of `limit_size` stored bytes; None: those of the job, whose `CostError` is raised.
    """
    try:
        with nullcontext() if limit_size is None else part(limit_size):
            return work()
    except Exception as error:
        # The last handler of a file.
        if limit_size is None and isinstance(error, CostError):
            raise
        return reason_of(error)
