# SPDX-License-Identifier: Apache-2.0
"""The address space of a traced process: the files that are mapped, and the memory that differs from them.

A file that is there no more (the vDSO, a deleted one) is put together from memory: its headers are there, and lead to
its CFI; its sections mostly are not.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cfi2sframe.elf.constants import PT_LOAD, PT_NOTE
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, parse_file_header, unpack_program_headers
from cfi2sframe.elf.notes import NT_GNU_BUILD_ID, parse_notes
from cfi2sframe.errors import ElfError, InputError
from cfi2sframe.printable import counted
from cfi2sframe.trace.files import FileStore, ModuleFile, alone
from cfi2sframe.trace.frames import ADDRESS_MASK, DEFAULT_PAC_MASK, Ending, Row, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.headers import ByteOrder, FileHeader, ProgramHeader
    from cfi2sframe.trace.files import FoundSymbol
    from cfi2sframe.trace.frames import Frame, ReadMemory, Trace

_Record = TypeVar("_Record", bound=tuple[object, ...])

#: The path of the vDSO, which is no file.
VDSO: Final = "[vdso]"
PAGE_SIZE: Final = 0x1000
_MAX_PROGRAM_HEADERS: Final = 128
_MAX_NOTES_SIZE: Final = 1 << 16
#: The largest file that is copied from memory: one that is only there is small, or its size is wrong.
_MAX_FILE_SIZE: Final = 1 << 28
#: The most bytes of sections that follow the segment of the vDSO.
_MAX_SECTIONS_SIZE: Final = 1 << 16


def last_from(records: Sequence[_Record], address: int) -> _Record | None:
    """Return the last of some records, ordered by the address in their first field, that starts at or before one."""
    index = bisect_right(records, address, key=itemgetter(0)) - 1
    return records[index] if index >= 0 else None


class Memory:
    """Pieces of memory: addresses, and the bytes from there on. They do not overlap."""

    def __init__(self, pieces: Iterable[tuple[int, FileData]]) -> None:
        self.pieces = sorted(pieces, key=itemgetter(0))

    @classmethod
    def at(cls, address: int, data: FileData) -> Memory:
        """Return memory of one piece, such as the copy of a stack from SP upwards."""
        return cls([(address, data)])

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
    """Addresses `[start, end)` hold a file's bytes from `file_offset` on. `path` may be `VDSO`."""

    start: int
    end: int
    file_offset: int
    path: str
    is_writable: bool = False


class Module(NamedTuple):
    """A file in memory. An address of the process is one of the file plus `bias`.

    `file` is the reason when it cannot be used. `note` tells why the file was read from memory.
    """

    start: int
    end: int
    name: str
    file: ModuleFile | str
    bias: int = 0
    note: str = ""


class AddressSpace:
    """The rows and bytes of a process by address. A file is opened when one of its addresses is first looked up.

    `store` keeps the files, for any number of processes. `read_own` reads what the process's own memory holds (a
    core's contents, or copies); without it a file is not compared with what was mapped, and what has no file (the
    vDSO) is not known. `open_file` finds files, where the store does not; `lack` ends the message about an address of
    no file.
    """

    def __init__(
        self,
        arch: Arch,
        mappings: Iterable[FileMapping],
        store: FileStore | None = None,
        read_own: ReadMemory = lambda _address, _size: None,
        *,
        open_file: Callable[[str], ModuleFile | str] | None = None,
        lack: str = "",
    ) -> None:
        self.arch = arch
        self.read_own = read_own
        self._store = store or FileStore()
        self._open_file = open_file or self._store.open
        self._lack = lack
        self._mappings = sorted(mappings)
        self._by_path: dict[str, list[FileMapping]] = {}
        for mapping in self._mappings:
            self._by_path.setdefault(mapping.path, []).append(mapping)
        self._opened: dict[str, list[Module]] = {}

    def __repr__(self) -> str:
        return f"<AddressSpace: {self.arch.name}, {counted(len(self._by_path), 'file')}>"

    @property
    def modules(self) -> list[Module]:
        """The files that have been looked at, by address."""
        return sorted(chain.from_iterable(self._opened.values()), key=lambda module: module.start)

    def module_at(self, address: int) -> Module | None:
        """Return the module that holds an address."""
        mapping = last_from(self._mappings, address)
        if mapping is None:
            return None
        if mapping.path not in self._opened:
            self._opened[mapping.path] = self._modules_of(mapping.path)
        module = last_from(self._opened[mapping.path], address)
        if module is None or address >= module.end:
            return None
        if address >= mapping.end:
            # Code may have been moved to huge pages, which are of no file; other pages between a file's are not its.
            file = module.file
            if isinstance(file, str) or file.image.code_range_of(address - module.bias) is None:
                return None
        return module

    def _modules_of(self, path: str) -> list[Module]:
        """Return the modules that a file's mappings make: one for each time that it was loaded."""
        # That the vDSO has no file needs no reason.
        file = "" if path == VDSO else self._open_file(path)
        if isinstance(file, ModuleFile) and file.image.arch != self.arch:
            file = f"the file is of {file.image.arch.name}"
        modules: list[Module] = []
        for mapping in self._by_path[path]:
            if modules and mapping.start < modules[-1].end:
                continue
            module = alone(None, partial(self._module_of, mapping, file))
            modules.append(Module(mapping.start, mapping.end, path, module) if isinstance(module, str) else module)
        return modules

    def _module_of(self, mapping: FileMapping, file: ModuleFile | str) -> Module:
        """Return the module that begins with a mapping, of its file, or else of what memory has of it."""
        start, name, order = mapping.start, mapping.path, self.arch.byte_order
        loaded = loaded_file(self.read_own, start, order)
        reason = file if isinstance(file, str) else "none of its mappings is the start of the program"
        loads = [] if isinstance(file, str) else [p for p in file.image.segments if p.type == PT_LOAD]
        if not isinstance(file, str) and loads:
            delta = loads[0].file_offset - mapping.file_offset
            built = None if loaded is None else build_id(self.read_own, loaded.segments, loaded.bias, order)
            own = None if built is None else build_id(file.image.bytes_at, file.image.segments, 0, order)
            if built is not None and own is not None and built != own:
                reason = f"the file has build-id {own.hex()}, the process {built.hex()}"
            elif 0 <= delta < mapping.end - start:
                bias = start + delta - loads[0].vaddr
                return Module(start, end_of(loads, bias), name, file, bias)
        if loaded is None:
            return Module(start, mapping.end, name, reason)
        data = file_from_memory(self.read_own, loaded)
        file = "its bytes are not in memory, or too many" if data is None else self._store.of_memory(data, name)
        if isinstance(file, ModuleFile) and isinstance(file.rows, Ending):
            file = f"what memory has of it cannot be used: {file.rows.detail}"
        if isinstance(file, str) and reason:
            file = f"{reason}; {file}"
        note = f"read from memory: {reason}" if reason else ""
        return Module(start, end_of(loaded.loads, loaded.bias), name, file, loaded.bias, note)

    def find_row(self, address: int) -> Row | Ending:
        """Return the row for an address, or why there is none."""
        module = self.module_at(address)
        if module is None:
            return Ending("no-module", f"no file is known at 0x{address:x}{self._lack}")
        file, vaddr = module.file, (address - module.bias) & ADDRESS_MASK
        if isinstance(file, str):
            return Ending("unusable-module", f"{module.name}: {file}")
        if isinstance(file.rows, Ending):
            return file.rows
        found = file.rows.find(vaddr)
        if found is None or found.state is None:
            reason = f"version {file.rows.version} has no row at 0x{vaddr:x} ({file.source})"
            return Ending("no-row", f"{file.image.name}: {reason}")
        return Row(file.source, found)

    def symbol_at(self, address: int) -> FoundSymbol | None:
        """Return the function at an address and the distance from its start."""
        file, vaddr = self._file_at(address)
        return None if file is None else file.symbol_at(vaddr)

    def _file_at(self, address: int) -> tuple[ModuleFile | None, int]:
        """Return the file of an address, None where none can be used, and its own address."""
        module = self.module_at(address)
        if module is None or isinstance(module.file, str):
            return None, 0
        return module.file, (address - module.bias) & ADDRESS_MASK

    def walk(self, frame: Frame, read_memory: ReadMemory | None = None, *, pac_mask: int = DEFAULT_PAC_MASK) -> Trace:
        """Return the frames from `frame` outwards, and why there are no more.

        `read_memory` has the memory of this moment, such as a copy of the stack; None: that of the process. Bytes that
        it lacks are read from the mapped files, which a core does not repeat.
        """
        own = read_memory or self.read_own

        def read(address: int, size: int) -> bytes | None:
            data = own(address, size)
            file, vaddr = self._file_at(address) if data is None else (None, 0)
            if file is None:
                return data
            try:
                return file.image.bytes_at(vaddr, size)
            except InputError:
                # The file has been truncated; its bytes are as missing as those that a core leaves out.
                return None

        return walk(frame, self.find_row, read, self.arch, pac_mask=pac_mask)


class LoadedFile(NamedTuple):
    """The headers of an ELF file in memory, and its PT_LOAD entries by address; `bias` is added to its addresses."""

    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    loads: tuple[ProgramHeader, ...]
    bias: int


def loaded_file(read: ReadMemory, start: int, byte_order: ByteOrder) -> LoadedFile | None:
    """Return the headers of the ELF file that is loaded at an address; None when there is none, or they are damaged."""
    try:
        header = parse_file_header(read(start, FILE_HEADER_SIZE) or b"")
    except ElfError:
        return None
    count = header.program_header_count
    is_usual = header.byte_order == byte_order and header.program_header_size == PROGRAM_HEADER_SIZE
    if not is_usual or count > _MAX_PROGRAM_HEADERS:
        return None
    table = read(start + header.program_headers_offset, count * PROGRAM_HEADER_SIZE) or b""
    segments = unpack_program_headers(table, byte_order)
    loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
    if not loads or loads[-1].end_vaddr >= 1 << 63:
        return None
    return LoadedFile(header, segments, loads, start - (loads[0].vaddr - loads[0].file_offset))


def end_of(loads: Iterable[ProgramHeader], bias: int) -> int:
    """Return the end of the last page of a file in memory."""
    return -(-(max(p.end_vaddr for p in loads) + bias) // PAGE_SIZE) * PAGE_SIZE


def build_id(read: ReadMemory, segments: Iterable[ProgramHeader], bias: int, byte_order: ByteOrder) -> bytes | None:
    """Return the build-id of a file in memory; None when its notes are not there."""
    for segment in segments:
        if segment.type == PT_NOTE and segment.file_size <= _MAX_NOTES_SIZE:
            data = read(segment.vaddr + bias, segment.file_size) or b""
            for note in parse_notes(data, byte_order, segment.alignment):
                if note.owner == b"GNU" and note.type == NT_GNU_BUILD_ID and note.data:
                    return note.data
    return None


def file_from_memory(read: ReadMemory, loaded: LoadedFile) -> bytes | None:
    """Return the bytes of a file, made of what memory has of its segments; None when that is nothing, or too much.

    File offsets are distances in memory. Sections are there only if memory has the file as it is, as of the vDSO.
    """
    header, loads = loaded.header, loaded.loads
    # The file's address of its ELF header, which is at file offset 0.
    base = loads[0].vaddr - loads[0].file_offset
    size = max(p.end_vaddr for p in loads) - base
    sections_end = header.section_headers_offset + header.section_header_count * header.section_header_size
    if size > _MAX_FILE_SIZE or any(b.vaddr < a.end_vaddr for a, b in pairwise(loads)):
        return None
    if len(loads) == 1 and header.section_headers_offset and sections_end <= size + _MAX_SECTIONS_SIZE:
        whole = read(base + loaded.bias, max(size, sections_end))
        if whole is not None:
            return whole
    content = bytearray(FILE_HEADER_SIZE)
    kept: list[ProgramHeader] = []
    for p in loads:
        # Bytes past p_memsz belong to something else, however large p_filesz is.
        load = p._replace(file_offset=p.vaddr - base, file_size=min(p.file_size, p.memory_size))
        data = read(p.vaddr + loaded.bias, load.file_size)
        if data is not None:
            content += bytes(load.file_offset + len(data) - len(content))
            content[load.file_offset : load.file_offset + len(data)] = data
            kept.append(load)
    if not kept:
        return None
    others = [p._replace(file_offset=p.vaddr - base) for p in loaded.segments if p.type != PT_LOAD]
    kept += [p for p in others if any(load.holds(p.vaddr, p.file_offset, p.file_size) for load in kept)]
    header = header._replace(
        program_headers_offset=len(content),
        program_header_count=len(kept),
        section_headers_offset=0,
        section_header_count=0,
        section_names_index=0,
    )
    content[:FILE_HEADER_SIZE] = header.pack()
    return bytes(content) + b"".join(p.pack(header.byte_order) for p in kept)
