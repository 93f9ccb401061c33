# SPDX-License-Identifier: Apache-2.0
"""The address space of a traced process: the files that are mapped, and the memory that differs from them.

Modules come from the process's mappings (NT_FILE, /proc/PID/maps), from its dynamic linker's list, or from ELF headers
in memory; each file is opened when one of its addresses is first looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PT_LOAD
from cfi2sframe.errors import InputError
from cfi2sframe.printable import counted
from cfi2sframe.trace.failures import guarded
from cfi2sframe.trace.frame import ADDRESS_MASK, Ending, Located
from cfi2sframe.trace.memory_image import headers_in_memory, image_bytes, memory_build_id
from cfi2sframe.trace.modules import FileStore, ModuleFile
from cfi2sframe.trace.walking import DEFAULT_LIMIT, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.trace.frame import Frame, ReadMemory, Trace
    from cfi2sframe.trace.function_names import FoundSymbol

_PAGE_MASK: Final = 0xFFF


class FileMapping(NamedTuple):
    """Addresses `[start, end)` hold a file's bytes from `file_offset` on."""

    start: int
    end: int
    file_offset: int
    path: str


class Module(NamedTuple):
    """A file in memory. An address of the process is one of the file plus `bias`.

    `file` is the reason when it cannot be used. `note` tells why the file was read from memory.
    """

    name: str
    start: int
    end: int
    bias: int
    file: ModuleFile | str
    note: str = ""


def _nothing(_address: int, _size: int) -> bytes | None:
    """Read no memory."""
    return None


class AddressSpace:
    """The rows and bytes of a process by address.

    `read_own` reads what the process's own memory holds (a core's contents, or copies); bytes that are missing there
    come from the mapped files. `open_file` and `open_memory` are a store's.
    """

    def __init__(
        self,
        arch: Arch,
        read_own: ReadMemory,
        open_file: Callable[[str], ModuleFile | str],
        open_memory: Callable[[bytes, str], ModuleFile | str],
    ) -> None:
        self.arch = arch
        self.read_own = read_own
        self._open_file = open_file
        self.open_memory = open_memory
        #: Programs in memory may share their bytes; separate, so that one that is too large does not cost the frames.
        #: Sorted by address; no two overlap.
        self.modules: list[Module] = []
        self._by_path: dict[str, list[FileMapping]] = {}
        self._mappings: list[FileMapping] = []
        #: Files that cannot be used, with their start addresses; their ends are not known.
        self._unusable: list[tuple[int, str, str]] = []

    @classmethod
    def of_mappings(
        cls,
        arch: Arch,
        mappings: Iterable[FileMapping],
        store: FileStore | None = None,
        read_own: ReadMemory = _nothing,
    ) -> AddressSpace:
        """Return the address space of a process that maps some files, for `walk`.

        `store` keeps the files, for any number of processes. Without `read_own` a file is not compared with what was
        mapped, and what has no file (the vDSO) is not known.
        """
        store = store or FileStore()
        space = cls(arch, read_own, store.open, store.of_memory)
        space.add_mappings(mappings)
        return space

    def walk(self, frame: Frame, read_memory: ReadMemory | None = None, *, limit: int = DEFAULT_LIMIT) -> Trace:
        """Return the frames from `frame` outwards, at most `limit` of them, and why there are no more.

        `read_memory` has the memory of this moment, such as a copy of the stack; None: that of the process.
        """

        def read(address: int, size: int) -> bytes | None:
            data = self.read_own(address, size) if read_memory is None else read_memory(address, size)
            return self._read_file(address, size) if data is None else data

        return walk(frame, self.find_row, read, self.arch, limit=limit)

    def __repr__(self) -> str:
        files = {*self._by_path, *(module.name for module in self.modules)}
        return f"<AddressSpace: {self.arch.name}, {counted(len(files), 'file')}>"

    # Modules

    def open_file(self, path: str) -> ModuleFile | str:
        """Return a file of the traced system, or why it cannot be used for this process."""
        file = self._open_file(path)
        if isinstance(file, ModuleFile) and file.image.arch != self.arch:
            return f"the file is of {file.image.arch.name}"
        return file

    def add_unusable(self, name: str, start: int, reason: str) -> None:
        """Remember a file that cannot be used, for messages."""
        self._unusable.append((start, name, reason))

    def add_mappings(self, mappings: Iterable[FileMapping]) -> None:
        """Add the files of mappings; they are opened when needed."""
        for mapping in mappings:
            self._by_path.setdefault(mapping.path, []).append(mapping)
        self._mappings = sorted(m for group in self._by_path.values() for m in group)

    def add_file(self, name: str, file: ModuleFile, bias: int) -> None:
        """Add a file that was loaded with a known bias."""
        loads = [p for p in file.image.segments if p.type == PT_LOAD]
        if loads:
            start = (min(p.vaddr for p in loads) + bias) & ADDRESS_MASK
            end = (max(p.end_vaddr for p in loads) + bias) & ADDRESS_MASK
            self._add(Module(name, start, end, bias, file))

    def add_in_memory(self, name: str, address: int) -> None:
        """Add the program of an ELF header in memory; nothing when there is none."""

        def add() -> None:
            headers = headers_in_memory(self._read_headers, address, self.arch.byte_order)
            if headers is not None:
                self._add(self._from_memory(name, address, headers.loads, headers.bias, ""))

        guarded(add, lambda reason: self.add_unusable(name, address, reason))

    def _read_headers(self, address: int, size: int) -> bytes | None:
        return self.read_own(address, size)

    def _add(self, module: Module) -> None:
        """Add a module, except for addresses that belong to another one already."""
        index = bisect_right(self.modules, module.start, key=_start_of)
        start = max(module.start, self.modules[index - 1].end) if index else module.start
        end = min(module.end, self.modules[index].start) if index < len(self.modules) else module.end
        if start < end:
            self.modules.insert(index, module._replace(start=start, end=end))

    def module_at(self, address: int) -> Module | None:
        """Return the module that holds an address."""
        index = bisect_right(self.modules, address, key=_start_of) - 1
        if index >= 0 and address < self.modules[index].end:
            return self.modules[index]
        index = bisect_right(self._mappings, address, key=_start_of) - 1
        if index < 0 or address >= self._mappings[index].end:
            return None
        # Its file has not been opened yet; modules replace its mappings.
        mappings = self._by_path.pop(self._mappings[index].path, None)
        if mappings is None:
            return None
        mappings.sort()
        path = mappings[0].path
        modules = guarded(
            lambda: self._open(path, mappings),
            lambda reason: [Module(path, m.start, m.end, 0, reason) for m in mappings],
        )
        for module in modules:
            self._add(module)
        return self.module_at(address)

    def _open(self, path: str, mappings: list[FileMapping]) -> list[Module]:
        """Return the modules that a file's mappings make: one for each time that it was loaded."""
        file = self.open_file(path)
        loads = () if isinstance(file, str) else [p for p in file.image.segments if p.type == PT_LOAD]
        modules: list[Module] = []
        for mapping in mappings:
            if modules and mapping.start < modules[-1].end:
                continue
            module = self._from_file(mapping, file, loads)
            modules.append(module or Module(path, mapping.start, mapping.end, 0, _reason(file)))
        return modules

    def _from_file(self, mapping: FileMapping, file: ModuleFile | str, loads: Iterable[ProgramHeader]) -> Module | None:
        headers = headers_in_memory(self._read_headers, mapping.start, self.arch.byte_order)
        first = next(iter(loads), None)
        if not isinstance(file, str) and first is not None:
            in_memory = memory_build_id(self._read_headers, headers)
            if in_memory is not None and file.build_id is not None and in_memory != file.build_id:
                file = f"the file has build-id {file.build_id.hex()}, the process {in_memory.hex()}"
            elif mapping.file_offset <= first.file_offset < mapping.file_offset + mapping.end - mapping.start:
                bias = mapping.start - (first.vaddr - (first.file_offset - mapping.file_offset))
                end = max(p.end_vaddr for p in loads) + bias
                return Module(mapping.path, mapping.start, (end + _PAGE_MASK) & ~_PAGE_MASK, bias, file)
        if headers is None:
            return None
        return self._from_memory(mapping.path, mapping.start, headers.loads, headers.bias, _reason(file))

    def _from_memory(self, name: str, start: int, loads: Iterable[ProgramHeader], bias: int, reason: str) -> Module:
        """Return a module made of what memory holds; `reason` tells why the file is not used."""
        end = max(p.end_vaddr for p in loads) + bias
        data = image_bytes(self.read_own, start, self.arch.byte_order)
        file: ModuleFile | str
        file = "its bytes are not in memory, or too many" if data is None else self.open_memory(data, name)
        if isinstance(file, ModuleFile) and isinstance(file.rows, Ending):
            file = f"what memory has of it cannot be used: {file.rows.detail}"
        if isinstance(file, str):
            file = f"{reason}; {file}" if reason else file
        note = f"read from memory: {reason}" if reason else ""
        return Module(name, start, (end + _PAGE_MASK) & ~_PAGE_MASK, bias, file, note)

    # Rows, symbols, bytes

    def find_row(self, address: int) -> Located:
        """Return the module and the row of an address, or an ending that tells why there is no row."""
        module = self.module_at(address)
        if module is None:
            return Located(None, None, None, Ending("no-module", self._no_module(address)))
        vaddr = (address - module.bias) & ADDRESS_MASK
        if isinstance(module.file, str):
            return Located(module.name, None, None, Ending("unusable-module", f"{module.name}: {module.file}"))
        rows = module.file.rows
        if isinstance(rows, Ending):
            return Located(module.name, vaddr, None, rows)
        row = rows.find(vaddr)
        if row is None:
            version = rows.section.version
            return Located(
                module.name,
                vaddr,
                None,
                Ending("no-row", f"{module.name}: version {version} has no row at 0x{vaddr:x} ({rows.source})"),
            )
        return Located(module.name, vaddr, row)

    def _no_module(self, address: int) -> str:
        below = [known for known in self._unusable if known[0] <= address]
        text = f"no file is known at 0x{address:x}"
        if below:
            start, name, reason = max(below)
            text += f"; {name}, which starts at 0x{start:x}, cannot be used: {reason}"
        return text

    def symbol_at(self, address: int) -> FoundSymbol | None:
        """Return the function at an address and the distance from its start."""
        module = self.module_at(address)
        if module is None or isinstance(module.file, str):
            return None
        return module.file.symbols.find((address - module.bias) & ADDRESS_MASK)

    def read(self, address: int, size: int) -> bytes | None:
        """Read memory: the process's own, or a mapped file's bytes where a core does not repeat them."""
        data = self.read_own(address, size)
        return self._read_file(address, size) if data is None else data

    def _read_file(self, address: int, size: int) -> bytes | None:
        """Read memory that holds a file's bytes from there."""
        module = self.module_at(address)
        if module is None or isinstance(module.file, str):
            return None
        try:
            return module.file.image.bytes_at((address - module.bias) & ADDRESS_MASK, size)
        except InputError:
            # The file has been truncated; its bytes are as missing as those that a core leaves out.
            return None


def _reason(file: ModuleFile | str) -> str:
    return file if isinstance(file, str) else "none of its mappings is the start of the program"


def _start_of(item: Module | FileMapping) -> int:
    return item.start
