# SPDX-License-Identifier: Apache-2.0
"""The address space of a traced process: its files, each read once, with their rows and functions by address.

A file that does not exist (the vDSO, a deleted file) is put together from memory, where its headers lead to its CFI;
its sections are mostly not there. A file that cannot be used does not affect others: where the job has limits, each
file has its own. What is read from memory counts for the job.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from contextlib import suppress
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.abi import arch_of_elf
from cfi2sframe.api import decode_existing, decode_made
from cfi2sframe.conversion import Options
from cfi2sframe.elf.constants import PT_LOAD, PT_NOTE, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, parse_file_header, parse_program_headers
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import read_file, stored_size
from cfi2sframe.elf.notes import NT_GNU_BUILD_ID, parse_notes
from cfi2sframe.errors import CostError, ElfError, InputError, reason_of
from cfi2sframe.guard import part
from cfi2sframe.trace.frames import ADDRESS_MASK, Ending, walk
from cfi2sframe.trace.snapshot import PAGE_SIZE, FileMapping, last_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import FileHeader, ProgramHeader
    from cfi2sframe.sframe.model import Found, Section
    from cfi2sframe.trace.frames import EndingKind, Frame, ReadMemory, Trace
    from cfi2sframe.trace.snapshot import Snapshot

_PATH_ONLY: Final = os.O_PATH | os.O_CLOEXEC
_FUNCTIONS: Final = (STT_FUNC, STT_GNU_IFUNC)
#: The symbols before an address that are considered: a function may contain labels and other functions.
_CANDIDATES: Final = 8

_AT_SYSINFO_EHDR: Final = 33
#: The path of the vDSO, which is no file.
_VDSO: Final = "[vdso]"
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest file that is copied from memory: those that exist only there are small, or their size is wrong.
_MAX_FILE_SIZE: Final = 1 << 28
#: The most bytes of sections that follow the segment of the vDSO.
_MAX_SECTIONS_SIZE: Final = 1 << 16


class ModuleFile(NamedTuple):
    """A file, its rows or why it has none, and its functions by address: start, size (0: unknown) and name.

    `source`: the rows come from the file's section or, if it has none, from its converted CFI.
    """

    image: ElfImage
    source: Literal["file", "converted"]
    rows: Section | str
    functions: Sequence[tuple[int, int, str]]

    def symbol_at(self, vaddr: int) -> tuple[str, int] | None:
        """Return the linkage name of the function at an address, and the distance from its start.

        A function of unknown size reaches to the next symbol or to the end of the code.
        """
        count = bisect_right(self.functions, vaddr, key=itemgetter(0))
        nearby = self.functions[max(0, count - _CANDIDATES) : count]
        for start, size, name in reversed(nearby):
            code = self.image.code_range_of(start) if size == 0 and start == nearby[-1][0] else None
            if vaddr < (code.end_vaddr if code else start + size):
                return name, vaddr - start
        return None


class FileStore:
    """Loads each file once for any number of threads, processes and samples.

    CFI is converted to `version`; `source` selects the CFI of each file (see `Options`).
    """

    def __init__(self, version: int = 3, source: CfiKind | None = None) -> None:
        # Our own look-up knows all errata, and nobody stores these rows, so they need not be few.
        self._options = Options(version, 2 if version == 2 else None, source, level=0)
        self._by_identity: dict[tuple[int, int, int], ModuleFile | str] = {}

    def open(self, path: str, root: str = "") -> ModuleFile | str:
        """Return the file at a path, below a root directory if one is given; or why it cannot be used."""
        try:
            descriptor = _open_below(root, path) if root else os.open(path, _PATH_ONLY)
        except OSError as error:
            return reason_of(error)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                # A damaged core may name a pipe or a device, which would block the reader.
                return "not a regular file, or empty"
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if identity not in self._by_identity:
                # By its descriptor: another file may have the name by now.
                self._by_identity[identity] = self._open(f"/proc/self/fd/{descriptor}", path)
            return self._by_identity[identity]
        finally:
            os.close(descriptor)

    def _open(self, path: str, name: str) -> ModuleFile | str:
        try:
            data = read_file(path)
            with part(stored_size(data)):
                return self.read(data, name)
        except Exception as error:  # noqa: BLE001 - the last handler of a file
            return reason_of(error)

    def read(self, data: FileData, name: str) -> ModuleFile:
        """Return the file with these bytes. Raises `InputError` when they are not a linked file's."""
        image = ElfImage(data, name)
        if image.is_relocatable:
            raise InputError("an object, which is never mapped")
        section = image.sframe_section
        has_section = (section is not None and section.size > 0) or image.sframe_segment is not None
        rows: Section | str
        try:
            rows = decode_existing(image) if has_section else decode_made(image, self._options)
            if rows.arch != image.arch:
                rows = f"the section is for {rows.arch.name}"
        except InputError as error:
            rows = error.detail
        return ModuleFile(image, "file" if has_section else "converted", rows, _functions_of(image))


def _open_below(root: str, path: str) -> int:
    """Return a descriptor (O_PATH) of the file at a path below a root directory. Raises `OSError`.

    Links, which could lead out of the root, are not followed; the kernel's lists of mappings have none.
    """
    descriptor = os.open(root, _PATH_ONLY)
    for name in path.strip("/").split("/"):
        folder = descriptor
        try:
            descriptor = os.open(name, _PATH_ONLY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
    return descriptor


def _functions_of(image: ElfImage) -> list[tuple[int, int, str]]:
    """Return the functions in .symtab and .dynsym, for each address the first symbol of the best kind."""
    found: list[tuple[int, int, int, str]] = []
    for table in image.symbol_tables:
        # A damaged or truncated table has no names.
        with suppress(InputError):
            for symbol in image.symbols(table):
                # AArch64's mapping symbols ($x, $d) mark instructions and data; they are no names.
                is_label = symbol.type == STT_NOTYPE and not symbol.name.startswith("$")
                if symbol.vaddr is not None and symbol.name and (symbol.type in _FUNCTIONS or is_label):
                    # Functions are preferred to labels, then symbols with a size.
                    found.append((symbol.vaddr, is_label * 2 + (symbol.size == 0), symbol.size, symbol.name))
    by_vaddr = groupby(sorted(found, key=itemgetter(0, 1)), key=itemgetter(0))
    return [(vaddr, size, name) for vaddr, symbols in by_vaddr for _, _, size, name in [next(symbols)]]


class Module(NamedTuple):
    """A file in memory. An address of the process is one of the file plus `bias`.

    `note` tells why the file was read from memory, or, where `file` is None, why it cannot be used.
    """

    start: int
    end: int
    name: str
    file: ModuleFile | None
    bias: int
    note: str = ""


class AddressSpace:
    """The rows and bytes of a process by address. A file is opened when one of its addresses is looked up first.

    `store` keeps the files, for any number of processes; `open_file`, if given, finds them instead of the store.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        store: FileStore | None = None,
        open_file: Callable[[str], ModuleFile | str] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._store = store or FileStore()
        self._open_file = open_file or self._store.open
        # Where the vDSO ends, its headers tell.
        starts = [snapshot.auxv[_AT_SYSINFO_EHDR]] if _AT_SYSINFO_EHDR in snapshot.auxv else []
        vdso = [FileMapping(start, start + PAGE_SIZE, 0, _VDSO) for start in starts]
        self._mappings = sorted([*snapshot.mappings, *vdso])
        self._opened: dict[str, list[Module]] = {}

    @property
    def modules(self) -> list[Module]:
        """The modules that have been opened, by address."""
        return sorted(chain.from_iterable(self._opened.values()), key=lambda module: module.start)

    def module_at(self, address: int) -> Module | None:
        """Return the module that holds an address."""
        mapping = last_from(self._mappings, address)
        if mapping is None:
            return None
        if mapping.path not in self._opened:
            self._opened[mapping.path] = self._modules_of(mapping.path)
        module = last_from(self._opened[mapping.path], address)
        # Code of a file that was moved to huge pages may lie between its mappings.
        return module if module and address < module.end else None

    def _modules_of(self, path: str) -> list[Module]:
        """Return the modules that a file's mappings make: one for each time that it was loaded."""
        # The vDSO needs no reason for having no file.
        file = "" if path == _VDSO else self._open_file(path)
        modules: list[Module] = []
        for mapping in self._mappings:
            if mapping.path == path and not (modules and mapping.start < modules[-1].end):
                try:
                    modules.append(self._module_of(mapping, file))
                except CostError:
                    raise
                except Exception as error:  # noqa: BLE001 - the last handler of a module
                    modules.append(Module(mapping.start, mapping.end, path, None, 0, reason_of(error)))
        return modules

    def _module_of(self, mapping: FileMapping, file: ModuleFile | str) -> Module:
        """Return the module that begins with a mapping, from its file or, failing that, from memory."""
        loaded = _loaded_at(mapping.start, self.snapshot)
        bias = file if isinstance(file, str) else _bias_of(file.image, mapping, loaded, self.snapshot.arch)
        if isinstance(file, ModuleFile) and isinstance(bias, int):
            return Module(mapping.start, file.image.end_of_segments() + bias, mapping.path, file, bias)
        reason = str(bias)
        if loaded is None:
            return Module(mapping.start, mapping.end, mapping.path, None, 0, reason)
        module = Module(mapping.start, loaded.loads[-1].end_vaddr + loaded.bias, mapping.path, None, loaded.bias)
        try:
            file = self._store.read(loaded.content(), mapping.path)
            if not isinstance(file.rows, str):
                return module._replace(file=file, note=reason and f"read from memory: {reason}")
            problem = f"what memory has of it cannot be used: {mapping.path}: {file.rows}"
        except InputError as error:
            problem = error.detail
        return module._replace(note=f"{reason}; {problem}" if reason else problem)

    def find(self, address: int) -> Found | Ending:
        """Return where CFA, RA and FP are at an address, or why that is not known."""
        module = self.module_at(address)
        if module is None:
            return Ending("no-module", f"no file is known at 0x{address:x}{self.snapshot.lack}")
        file, vaddr = module.file, (address - module.bias) & ADDRESS_MASK
        if file is None:
            return Ending("unusable-module", f"{module.name}: {module.note}")
        if isinstance(file.rows, str):
            kind: EndingKind = "unusable-section" if file.source == "file" else "unusable-module"
            return Ending(kind, f"{module.name}: {file.rows}")
        found = file.rows.find(vaddr)
        if found is None or found.state is None:
            reason = f"version {file.rows.version} has no row at 0x{vaddr:x} ({file.source})"
            return Ending("no-row", f"{module.name}: {reason}")
        return found

    def symbol_at(self, address: int) -> tuple[str, int] | None:
        """Return the linkage name of the function at an address, and the distance from its start."""
        file, vaddr = self._file_at(address)
        return file and file.symbol_at(vaddr)

    def _file_at(self, address: int) -> tuple[ModuleFile | None, int]:
        """Return the file at an address, if it can be used, and the file's own address."""
        module = self.module_at(address)
        return (module.file, (address - module.bias) & ADDRESS_MASK) if module else (None, 0)

    def walk(self, frame: Frame, read_memory: ReadMemory | None = None) -> Trace:
        """Return the frames from `frame` outwards, and why there are no more.

        `read_memory` reads a copy of the stack, for example; None reads the memory of the process. Other bytes are read
        from the mapped files, which a core does not contain.
        """
        own = read_memory or self.snapshot.read

        def read(address: int, size: int) -> bytes | None:
            data = own(address, size)
            file, vaddr = self._file_at(address) if data is None else (None, 0)
            try:
                return file.image.bytes_at(vaddr, size) if file else data
            except InputError:
                # The file has been truncated since.
                return None

        return walk(frame, self.find, read, self.snapshot.arch, pac_mask=self.snapshot.pac_mask)


class _LoadedFile(NamedTuple):
    """An ELF file in memory: its headers, its PT_LOAD entries by address, and what is added to its addresses.

    `read` takes the file's own addresses.
    """

    header: FileHeader
    segments: Sequence[ProgramHeader]
    loads: Sequence[ProgramHeader]
    bias: int
    read: ReadMemory

    def content(self) -> bytes:
        """Return a file made of the segments in memory, with distances in memory as file offsets.

        It has sections only if memory has the whole file, as it has the vDSO. Raises `InputError` when memory has none
        of its segments, or too much.
        """
        header, loads = self.header, self.loads
        # The file's address of its ELF header, which is at file offset 0.
        base = loads[0].vaddr - loads[0].file_offset
        size = loads[-1].end_vaddr - base
        sections_end = header.section_headers_offset + header.section_header_count * header.section_header_size
        if len(loads) == 1 and size <= sections_end <= size + _MAX_SECTIONS_SIZE:
            whole = self.read(base, sections_end)
            if whole is not None:
                return whole
        content = bytearray(FILE_HEADER_SIZE)
        kept: list[ProgramHeader] = []
        for p in self.segments if size <= _MAX_FILE_SIZE else ():
            # Bytes past p_memsz belong to something else, however large p_filesz is.
            segment = p._replace(file_offset=p.vaddr - base, file_size=min(p.file_size, p.memory_size))
            is_inside = 0 <= segment.file_offset <= size - segment.file_size
            data = self.read(p.vaddr, segment.file_size) if is_inside else None
            if data is not None:
                kept.append(segment)
                if p.type == PT_LOAD:
                    content = content.ljust(segment.file_offset, b"\0")
                    content[segment.file_offset : segment.file_offset + len(data)] = data
        if all(segment.type != PT_LOAD for segment in kept):
            raise InputError("its bytes are not in memory, or too many")
        header = header._replace(
            program_headers_offset=len(content), program_header_count=len(kept), section_headers_offset=0
        )
        content[:FILE_HEADER_SIZE] = header.pack()
        return bytes(content) + b"".join(p.pack(header.byte_order) for p in kept)


def _loaded_at(start: int, snapshot: Snapshot) -> _LoadedFile | None:
    """Return the ELF file that is loaded at an address; None without one, or without headers in its first page."""
    try:
        header = parse_file_header(snapshot.read(start, FILE_HEADER_SIZE) or b"")
        size = header.program_headers_offset + header.program_header_count * PROGRAM_HEADER_SIZE
        segments = parse_program_headers(snapshot.read(start, min(size, PAGE_SIZE)) or b"", header)
    except ElfError:
        return None
    loads = _loads_of(segments)
    is_usual = arch_of_elf(header.machine, header.byte_order) == snapshot.arch
    if not is_usual or not loads or loads[-1].end_vaddr >= 1 << 63:
        return None
    bias = start - (loads[0].vaddr - loads[0].file_offset)
    return _LoadedFile(header, segments, loads, bias, lambda vaddr, size: snapshot.read(vaddr + bias, size))


def _bias_of(image: ElfImage, mapping: FileMapping, loaded: _LoadedFile | None, arch: Arch) -> int | str:
    """Return what is added to the addresses of a file that begins with a mapping, or why it is not the mapped file."""
    if image.arch != arch:
        return f"the file is of {image.arch.name}"
    built = loaded and _build_id(loaded.read, loaded.segments, arch.byte_order)
    own = built and _build_id(image.bytes_at, image.segments, arch.byte_order)
    if built and own and built != own:
        return f"the file has build-id {own.hex()}, the process {built.hex()}"
    first = next(iter(_loads_of(image.segments)), None)
    if first is None or not 0 <= first.file_offset - mapping.file_offset < mapping.end - mapping.start:
        return "none of its mappings is the start of the program"
    return mapping.start + first.file_offset - mapping.file_offset - first.vaddr


def _loads_of(segments: Iterable[ProgramHeader]) -> list[ProgramHeader]:
    return sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr)


def _build_id(read: ReadMemory, segments: Iterable[ProgramHeader], byte_order: Literal["<", ">"]) -> bytes | None:
    """Return the build-id of a file that is read by its own addresses; None without its notes."""
    for segment in segments:
        if segment.type == PT_NOTE and segment.file_size <= _MAX_NOTES_SIZE:
            data = read(segment.vaddr, segment.file_size) or b""
            for note in parse_notes(data, byte_order, segment.alignment):
                if note.owner == b"GNU" and note.type == NT_GNU_BUILD_ID and note.data:
                    return note.data
    return None
