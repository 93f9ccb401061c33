# SPDX-License-Identifier: Apache-2.0
"""The files that are mapped into a process: each loaded once, with its rows and its symbols.

Knows files and nothing of processes; addresses are virtual addresses of the files.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.api import decode, decode_existing
from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import load, stored_size
from cfi2sframe.elf.notes import build_id
from cfi2sframe.errors import CostError, InputError
from cfi2sframe.guard import part
from cfi2sframe.trace.failures import guarded
from cfi2sframe.trace.frame import Ending, Row
from cfi2sframe.trace.function_names import SymbolTable
from cfi2sframe.trace.sysroot import open_inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.trace.frame import RowSource


class RowTable(NamedTuple):
    """A module's rows, and where they come from."""

    section: Section
    source: RowSource

    def __repr__(self) -> str:
        return f"<RowTable: {self.section} of the {'file' if self.source == 'file' else 'CFI'}>"

    def find(self, vaddr: int) -> Row | None:
        """Return the row in force at an address of the file."""
        found = self.section.find(vaddr)
        if found is None:
            return None
        body = found.function.body
        state = found.state
        if state is None:
            return None
        return Row(
            state,
            self.source,
            self.section.version,
            is_flexible=body.is_flexible,
            is_pcmask=body.is_pcmask,
            is_signal_frame=body.is_signal_frame,
        )


class ModuleFile:
    """A file with its rows and symbols, both computed on first use and kept."""

    def __init__(self, image: ElfImage, version: int, source: CfiKind | None = None) -> None:
        self.image = image
        self._version = version
        self._source = source
        self._rows: RowTable | Ending | None = None
        self._symbols: SymbolTable | None = None
        self.build_id = build_id(image)

    @property
    def rows(self) -> RowTable | Ending:
        """The rows of the file's SFrame section, or of its CFI where it has none; or the reason why there are none."""
        if self._rows is None:
            self._rows = guarded(self._read_rows, self._unusable)
        return self._rows

    def _read_rows(self) -> RowTable | Ending:
        try:
            with part(stored_size(self.image.data)):
                return _read_rows(self.image, self._version, self._source)
        except CostError as error:
            return self._unusable(str(error))

    def _unusable(self, reason: str) -> Ending:
        return Ending("unusable-module", f"{self.image.name}: {reason}")

    @property
    def trouble(self) -> str:
        """The effect of a bug of this program on the file's symbols; empty without one."""
        return self._symbols.trouble if self._symbols is not None else ""

    @property
    def symbols(self) -> SymbolTable:
        """The file's function symbols."""
        if self._symbols is None:
            self._symbols = SymbolTable(self.image)
        return self._symbols


def _read_rows(image: ElfImage, version: int, kind: CfiKind | None) -> RowTable | Ending:
    section = image.sframe_section
    has_section = (section is not None and section.size > 0) or image.sframe_segment is not None
    source: RowSource = "file" if has_section else "converted"
    try:
        decoded = decode_existing(image) if has_section else _converted(image, version, kind)
    except InputError as error:
        return Ending("unusable-section" if has_section else "unusable-module", f"{image.name}: {error.detail}")
    if decoded.arch != image.arch:
        return Ending("unusable-section", f"{image.name}: the section is for {decoded.arch.name}")
    return RowTable(decoded, source)


def _converted(image: ElfImage, version: int, source: CfiKind | None) -> Section:
    # These rows are for our own look-up, which knows all errata, and nobody stores them: their bytes need not be few.
    conversion = convert_image(image, Options(version, 2 if version == 2 else None, source, level=0))
    if not conversion.data:
        raise InputError(f"SFrame version {version} can describe none of the functions")
    return decode(conversion.data, conversion.section_vaddr)


class FileStore:
    """Loads each file once, for any number of threads, processes or samples that it is mapped in.

    `sysroot` is the root directory in which the traced paths are looked up. `version` is the SFrame version
    that CFI is converted to, `source` the source that is asked of each file (see `Options`).
    """

    def __init__(self, sysroot: str = "", version: int = 3, source: CfiKind | None = None) -> None:
        self.sysroot = sysroot
        self.version = version
        self.source = source
        self._by_identity: dict[tuple[int, int, int], ModuleFile | str] = {}
        self._by_bytes: dict[bytes, ModuleFile | str] = {}

    def open(self, path: str, sysroot: str | None = None) -> ModuleFile | str:
        """Return the file at a path of the traced system, or why it cannot be used."""
        root = self.sysroot if sysroot is None else sysroot
        if not root:
            return self.open_here(path, path)
        try:
            descriptor = open_inside(root, path)
        except (OSError, ValueError) as error:
            return _reason(error)
        try:
            # The file that was found, even if another one has its name now.
            return self.open_here(f"/proc/self/fd/{descriptor}", path)
        finally:
            os.close(descriptor)

    def open_here(self, path: str, name: str) -> ModuleFile | str:
        """Return the file at a path of this system, or why it cannot be used. `name` is its name in messages."""
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            return _reason(error)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            # A pipe or a device, as a damaged core may list it, would block its reader.
            return "not a regular file, or empty"
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        known = self._by_identity.get(identity)
        if known is None:
            known = self._by_identity[identity] = self._load(lambda: load(path, name))
        return known

    def of_memory(self, data: bytes, name: str) -> ModuleFile | str:
        """Return the file whose bytes were read from memory, or why it cannot be used."""
        known = self._by_bytes.get(data)
        if known is None:
            known = self._by_bytes[data] = self._load(lambda: ElfImage(data, name))
        return known

    def _load(self, read: Callable[[], ElfImage]) -> ModuleFile | str:
        def opened() -> ModuleFile | str:
            image = read()
            return (
                "an object, which is never mapped"
                if image.is_relocatable
                else ModuleFile(image, self.version, self.source)
            )

        return guarded(opened, str)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
