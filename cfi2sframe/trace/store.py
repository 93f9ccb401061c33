# SPDX-License-Identifier: Apache-2.0
"""The files of traced processes: each is read and converted once, for any number of processes and samples.

A file that cannot be used does not affect others: where the job has limits, each file has its own.
"""

import lzma
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal, NamedTuple

from cfi2sframe.api import convert_for, decode_conversion
from cfi2sframe.constants.elf import SHT_SYMTAB
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.debug_file import AUTO, build_id_of, with_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import in_root, open_regular, read_open, stored_size
from cfi2sframe.errors import ElfError, InputError, reason_of
from cfi2sframe.existing import Presence, existing_section
from cfi2sframe.gotable.header import find_table
from cfi2sframe.gotable.translate import go_functions
from cfi2sframe.process.guard import part
from cfi2sframe.sframe.model import Section
from cfi2sframe.trace.beyond import Beyond, rows_beyond
from cfi2sframe.trace.snapshot import last_from

#: Symbols of functions, as an ELF file in the format of xz ("MiniDebugInfo" in gdb's manual).
_DEBUG_DATA: Final = ".gnu_debugdata"


class ModuleFile(NamedTuple):
    """A file, its rows or why it has none, and its functions by address: start, size (0: unknown) and name.

    `source`: the rows come from the file's section or, if it has none, from its converted CFI. `build_id` is empty
    where the file has none. `beyond` has starts and ends of rows that no section can hold.
    """

    image: ElfImage
    source: Literal["file", "converted"]
    rows: Section | str
    functions: Sequence[tuple[int, int, str]]
    build_id: bytes = b""
    beyond: Sequence[Beyond] = ()

    def symbol_at(self, vaddr: int) -> tuple[str, int] | None:
        """Return the linkage name of the function at an address, and the distance from its start.

        A function of unknown size reaches to the next one or to the end of the code.
        """
        start, size, name = last_from(self.functions, vaddr) or (vaddr, 0, "")
        code = None if size else self.image.code_range_of(start)
        return (name, vaddr - start) if name and vaddr < (code.end_vaddr if code else start + size) else None


class FileStore:
    """Loads each file once for any number of threads, processes and samples.

    CFI is converted to `version`; `source` selects the CFI of each file (see `convert`). `debug_file` is where separate
    debug files are looked for, for CFI and names of functions (see `find_debug_file`); None is nowhere. A directory may
    have mapped files, too, by build-id. `only_sections`: no CFI is converted.
    """

    def __init__(
        self,
        version: int = 3,
        source: CfiKind | None = None,
        debug_file: str | None = AUTO,
        *,
        only_sections: bool = False,
    ) -> None:
        # The look-up of this package knows all errata, and these rows are not stored, so their size does not matter.
        self._options = Options(version, 2 if version == 2 else None, source, level=0)
        self._only_sections = only_sections
        self._debug_file = debug_file if source in (None, "code") else None
        self._by_identity: dict[tuple[int, int, int], ModuleFile | str] = {}

    def open(self, path: str, root: str = "") -> ModuleFile | str:
        """Return the file at a path, below a root directory if one is given; or why it cannot be used."""
        try:
            # A damaged core may name a pipe or a device.
            descriptor = open_regular(path, root)
        except (InputError, OSError) as error:
            return reason_of(error)
        with open(descriptor, "rb"):
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if identity not in self._by_identity:
                try:
                    data = read_open(descriptor)
                    with part(stored_size(data)):
                        self._by_identity[identity] = self.read(data, path, root)
                except Exception as error:  # noqa: BLE001 - the last handler of a file
                    self._by_identity[identity] = reason_of(error)
        return self._by_identity[identity]

    def open_build(self, build_id: bytes, root: str = "") -> ModuleFile | str:
        """Return the file with a build-id below the directory of debug files that was named, where gdb looks, too.

        `root` is the directory below which the other files are: no link in it leads out of it.
        """
        if not build_id or self._debug_file is None or not os.path.isdir(self._debug_file):
            return "no directory of builds"
        name = build_id.hex()
        return self.open(*in_root(os.path.join(self._debug_file, ".build-id", name[:2], name[2:]), root))

    def read(self, data: FileData, name: str, root: str | None = None) -> ModuleFile:
        """Return the file with these bytes. Raises `InputError` when they are not a linked file's.

        `root` is where its debug file is looked for (see `find_debug_file`), None: nowhere.
        """
        image = ElfImage(data, name)
        if image.is_relocatable:
            raise InputError("an object, which is never mapped")
        with ExitStack() as stack:
            both = image
            # A debug file that the user names is that of one module: for the others, it is no error.
            with suppress(InputError):
                debug_file = None if root is None else self._debug_file
                both = stack.enter_context(with_debug_file(image, debug_file, root or ""))
            source, rows, beyond = self._rows_of(both)
            build_id = b""
            with suppress(ElfError):
                build_id = build_id_of(both)
            return ModuleFile(image, source, rows, functions_of(both), build_id, beyond)

    def _rows_of(self, image: ElfImage) -> tuple[Literal["file", "converted"], Section | str, Sequence[Beyond]]:
        """Return the source of a file's rows, the rows or why it has none, and those that no section can hold."""
        existing = existing_section(image)
        source: Literal["file", "converted"] = "file"
        try:
            if existing.presence not in (Presence.ABSENT, Presence.EMPTY):
                section = existing.or_raise()
                rows = section if section.arch == image.arch else f"the section is for {section.arch.name}"
                return source, rows, ()
            source = "converted"
            if self._only_sections:
                return source, "the file has no .sframe section", ()
            conversion = convert_for(image, self._options, None)
            return source, decode_conversion(conversion), tuple(rows_beyond(conversion))
        except InputError as error:
            return source, error.detail, ()


def functions_of(image: ElfImage) -> list[tuple[int, int, str]]:
    """Return start, size (0: unknown) and name of each function, in the order of their starts."""
    # Of several names at an address, that of the first of these tables counts.
    tables = [_symbols_of(image)]
    if image.debug_file is not None:
        tables.append(_symbols_of(image.debug_file))
    if not (image.is_relocatable or any(section.type == SHT_SYMTAB for section in image.sections)):
        with suppress(InputError):
            go_table = find_table(image)
            tables.append({} if go_table is None else go_functions(go_table))
        for section in image.sections_named(_DEBUG_DATA):
            with suppress(InputError, lzma.LZMAError):
                content = lzma.decompress(image.section_bytes(section), lzma.FORMAT_XZ)
                tables.append(_symbols_of(ElfImage(content, image.name)))
    functions = {vaddr: function for table in reversed(tables) for vaddr, function in table.items()}
    return sorted((vaddr, size, name) for vaddr, (size, name) in functions.items())


def _symbols_of(image: ElfImage) -> dict[int, tuple[int, str]]:
    return {vaddr: (symbol.size, symbol.name) for vaddr, symbol in image.functions().items()}
