# SPDX-License-Identifier: Apache-2.0
"""The address space of a traced process: the files that are mapped, and the memory that differs from them."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PT_LOAD
from cfi2sframe.errors import InputError
from cfi2sframe.printable import counted
from cfi2sframe.trace.files import FileStore, ModuleFile, alone
from cfi2sframe.trace.frames import ADDRESS_MASK, DEFAULT_PAC_MASK, Ending
from cfi2sframe.trace.memory import build_id, end_of, file_from_memory, last_from, loaded_file
from cfi2sframe.trace.stepping import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.abi import Arch
    from cfi2sframe.trace.files import FoundSymbol
    from cfi2sframe.trace.frames import Frame, ReadMemory, Row, Trace

#: The path of the vDSO, which is no file.
VDSO: Final = "[vdso]"


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
        if isinstance(module.file, str):
            return Ending("unusable-module", f"{module.name}: {module.file}")
        return module.file.row_at((address - module.bias) & ADDRESS_MASK)

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
