# SPDX-License-Identifier: Apache-2.0
"""The address space of a traced process: its files, with their rows and functions by address.

The vDSO, which is no file, is read from memory, within the limits of the job.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from cfi2sframe.constants.elf import PF_X, PT_LOAD, PT_NOTE
from cfi2sframe.elf.debug_file import build_id_in, build_id_of
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, ProgramHeader, parse_file_header, parse_program_headers
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import CostError, ElfError, InputError, reason_of
from cfi2sframe.range_map import ADDRESS_MASK
from cfi2sframe.sframe.model import Found
from cfi2sframe.trace.beyond import BEYOND, LoadedCfa
from cfi2sframe.trace.frames import Ending, Frame, ReadMemory, Trace, walk
from cfi2sframe.trace.snapshot import PAGE_SIZE, FileMapping, Snapshot, last_from, padded_build_id
from cfi2sframe.trace.store import FileStore, ModuleFile

_AT_SYSINFO_EHDR: Final = 33
#: The path of the vDSO, which is no file.
VDSO: Final = "[vdso]"
#: The kernel's addition to the path of a file that is no longer there, or was replaced.
DELETED: Final = " (deleted)"
#: The most addresses whose rows are kept.
_MAX_KEPT: Final = 100_000
#: The most bytes that are read of the vDSO, which has two pages.
_MAX_VDSO_SIZE: Final = 1 << 16


class Module(NamedTuple):
    """A file in memory. An address of the process is one of the file plus `bias`.

    `note` tells, where `file` is None, why it cannot be used.
    """

    start: int
    end: int
    name: str
    file: ModuleFile | None
    bias: int
    note: str = ""

    @property
    def source(self) -> str:
        """The origin of its rows: "file", "converted", or "none"."""
        return "none" if self.file is None or self.problem else self.file.source

    @property
    def problem(self) -> str:
        """The reason why it has no rows: it cannot be used, or its file has none; empty if it has."""
        return self.file.rows if self.file and isinstance(self.file.rows, str) else self.note

    def vaddr_of(self, address: int) -> int:
        """Return the file's own address at an address of the process."""
        return (address - self.bias) & ADDRESS_MASK


def _code_starts(segments: Iterable[ProgramHeader]) -> list[int]:
    return [p.vaddr for p in segments if p.type == PT_LOAD and p.flags & PF_X]


class AddressSpace:
    """The rows and bytes of a process by address. A file is opened when one of its addresses is looked up first.

    `store` keeps the files, for any number of processes; `open_file`, if given, opens them instead of the store. `root`
    is the directory below which they are: no link leads out of it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        store: FileStore | None = None,
        open_file: Callable[[str], ModuleFile | str] | None = None,
        root: str = "",
    ) -> None:
        self.snapshot = snapshot
        self._root = root
        self._rows: dict[int, Found | LoadedCfa | Ending] = {}
        #: The modules in which rows were looked for, by name.
        self.used: dict[str, Module] = {}
        self._store = store or FileStore()
        self._open_file = open_file or partial(self._store.open, root=root)
        self._mappings = sorted(snapshot.mappings)
        start = snapshot.auxv.get(_AT_SYSINFO_EHDR)
        if start is not None:
            # Its headers tell where the vDSO ends.
            insort(self._mappings, FileMapping(start, start + PAGE_SIZE, 0, VDSO))
        self._opened: dict[str, list[Module]] = {}
        #: By path, the addresses at which the file's first byte would be, by each of its mappings.
        self._first_bytes: dict[str, set[int]] = {}
        for mapping in self._mappings:
            self._first_bytes.setdefault(mapping.path, set()).add(mapping.start - mapping.file_offset)

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
        modules: list[Module] = []
        for mapping in self._mappings:
            if mapping.path == path and not (modules and mapping.start < modules[-1].end):
                try:
                    modules.append(self._module_of(mapping))
                except CostError:
                    raise
                except Exception as error:  # noqa: BLE001 - the last handler of a module
                    modules.append(Module(mapping.start, mapping.end, path, None, 0, reason_of(error)))
        return modules

    def _module_of(self, mapping: FileMapping) -> Module:
        """Return the module that begins with a mapping: of the file there, or of one with its build-id.

        Raises `InputError`.
        """
        if mapping.path == VDSO:
            return self._module_with(mapping, self._vdso(mapping.start))
        module = self._module_with(mapping, self._open_file(mapping.path))
        if module.file is None:
            build_id = mapping.build_id or self._build_at(mapping.start - mapping.file_offset)[1]
            # A file that was replaced may be there again, or be the same build, converted.
            files = [self._store.open_build(build_id, self._root)]
            if build_id and mapping.path.endswith(DELETED):
                files.insert(0, self._open_file(mapping.path.removesuffix(DELETED)))
            for file in files:
                if isinstance(file, ModuleFile) and padded_build_id(file.build_id) == padded_build_id(build_id):
                    return self._module_with(mapping, file)
        return module

    def _module_with(self, mapping: FileMapping, file: ModuleFile | str) -> Module:
        """Return the module of a file, or of a reason, that begins with a mapping. Raises `InputError`."""
        module = Module(mapping.start, mapping.end, mapping.path, None, 0)
        if isinstance(file, str):
            return module._replace(note=file)
        image = file.image
        if image.arch != self.snapshot.arch:
            raise InputError(f"the file is for {image.arch.name}")
        if mapping.build_id and file.build_id and padded_build_id(mapping.build_id) != padded_build_id(file.build_id):
            return module._replace(note=f"another build was mapped: build-id {mapping.build_id.hex()}; see --sysroot")
        bias = self._bias_of(image, mapping)
        module = module._replace(end=image.end_of_segments() + bias, file=file, bias=bias)
        notes = ((p.vaddr + bias, image.bytes_at(p.vaddr, p.file_size)) for p in image.segments if p.type == PT_NOTE)
        # As far as the file and memory are known.
        if all(not data or self.snapshot.read(start, len(data)) in (None, data) for start, data in notes):
            return module
        # If the file was converted in the meantime, or its section removed, only its notes are at other addresses.
        code, build_id = self._build_at(mapping.start - mapping.file_offset)
        if build_id and build_id == build_id_of(image) and code == _code_starts(image.segments):
            return module
        problem = "another build was mapped: the file's notes (build-id) are not those in memory; see --sysroot"
        return module._replace(file=None, note=problem)

    def _bias_of(self, image: ElfImage, mapping: FileMapping) -> int:
        """Return the bias of the module that begins with a mapping. Raises `InputError`.

        Profilers list executable mappings alone, and segments may share a page of the file. So each segment that the
        mapping may begin with gives a bias; the one counts by which most segments are where the file is mapped, and of
        several, one of code.
        """
        mapped_starts = self._first_bytes[mapping.path]
        starts = {p.vaddr_of(0) for p in image.loads}
        ranks: list[tuple[int, int, int]] = []
        for p in image.loads:
            page_size = max(p.alignment, PAGE_SIZE)
            if p.file_offset // page_size * page_size <= mapping.file_offset < p.file_offset + p.file_size:
                bias = mapping.start - p.vaddr_of(mapping.file_offset)
                ranks.append((sum(start + bias in mapped_starts for start in starts), p.flags & PF_X, bias))
        if not ranks:
            raise InputError("none of its mappings holds a segment of the program")
        return max(ranks)[2]

    def _build_at(self, start: int) -> tuple[list[int], bytes]:
        """Return the starts of code and the build-id that a file's headers in memory lead to, empty without any.

        `start` is the address of the file's first byte.
        """
        memory = self.snapshot.read(start, PAGE_SIZE) or b""
        try:
            segments = parse_program_headers(memory, parse_file_header(memory))
        except ElfError:
            return [], b""
        first = min((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr, default=None)
        bias = start + first.file_offset - first.vaddr if first else 0
        notes = [
            (self.snapshot.read(p.vaddr + bias, p.file_size) or b"", p.alignment)
            for p in segments
            if p.type == PT_NOTE and p.file_size <= PAGE_SIZE
        ]
        return _code_starts(segments), build_id_in(notes, self.snapshot.arch.byte_order)

    def _vdso(self, start: int) -> ModuleFile:
        """Return the vDSO, which ends with its section headers. Raises `InputError`."""
        header = parse_file_header(self.snapshot.read(start, FILE_HEADER_SIZE) or b"")
        size = header.section_headers_offset + header.section_header_count * header.section_header_size
        return self._store.read(self.snapshot.read(start, min(size, _MAX_VDSO_SIZE)) or b"", VDSO)

    def find(self, address: int) -> Found | Ending:
        """Return where CFA, RA and FP are at an address, or why that is not known."""
        row = self.look_up(address)
        return Ending("no-row", BEYOND) if isinstance(row, LoadedCfa) else row

    def look_up(self, address: int) -> Found | LoadedCfa | Ending:
        """Return the same as `find`, or a row that no section can hold. Results are kept for the next time."""
        row = self._rows.get(address)
        if row is None:
            if len(self._rows) >= _MAX_KEPT:
                self._rows.clear()
            row = self._rows[address] = self._find(address)
        return row

    def _find(self, address: int) -> Found | LoadedCfa | Ending:
        module = self.module_at(address)
        if module is None:
            code = self.snapshot.code
            if code is not None and not any(start <= address < end for start, end in code):
                return Ending("no-code", f"nothing that can be executed is at 0x{address:x}")
            return Ending("no-module", f"no file is known at 0x{address:x}{self.snapshot.no_file_hint}")
        self.used[module.name] = module
        file, vaddr = module.file, module.vaddr_of(address)
        if file is None or isinstance(file.rows, str):
            return Ending("unusable-module", f"{module.name}: {module.problem}")
        row = file.rows.find(vaddr)
        if row is not None and row.state is not None:
            return row
        _, end, beyond = last_from(file.beyond, vaddr) or (0, 0, None)
        if beyond is not None and vaddr < end:
            return beyond
        version = file.rows.version
        return Ending("no-row", f"{module.name}: version {version} has no row at 0x{vaddr:x} ({file.source})")

    def symbol_at(self, address: int) -> tuple[str, int] | None:
        """Return the linkage name of the function at an address, and the distance from its start."""
        module = self.module_at(address)
        return module.file.symbol_at(module.vaddr_of(address)) if module and module.file else None

    def walk(self, frame: Frame, read_memory: ReadMemory | None = None) -> Trace:
        """Return the frames from `frame` outwards, and why there are no more.

        `read_memory` reads a copy of the stack, for example; None reads the memory of the process. Other bytes are read
        from the mapped files, which a core does not contain.
        """
        own = read_memory or self.snapshot.read

        def read(address: int, size: int) -> bytes | None:
            data = own(address, size)
            module = self.module_at(address) if data is None else None
            # The file may have been truncated since.
            with suppress(InputError):
                if module is not None and module.file is not None:
                    data = module.file.image.bytes_at(module.vaddr_of(address), size)
            return data

        return walk(frame, self.look_up, read, self.snapshot.arch, pac_mask=self.snapshot.pac_mask)
