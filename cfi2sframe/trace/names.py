# SPDX-License-Identifier: Apache-2.0
"""The functions of a linked file by address: of its symbols, of its debug file, and of what strip leaves in it."""

import lzma
from contextlib import suppress
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import InputError
from cfi2sframe.gotable.header import find_table
from cfi2sframe.gotable.translate import go_functions

#: Symbols of functions, as an ELF file in the format of xz ("MiniDebugInfo" in gdb's manual).
_DEBUG_DATA: Final = ".gnu_debugdata"


def functions_of(image: ElfImage) -> list[tuple[int, int, str]]:
    """Return start, size (0: unknown) and name of each function, in the order of their starts."""
    found = {vaddr: (symbol.size, symbol.name) for vaddr, symbol in image.functions().items()}
    if image.debug_file is not None:
        found = {vaddr: (s.size, s.name) for vaddr, s in image.debug_file.functions().items()} | found
    if not (image.is_relocatable or any(section.type == c.SHT_SYMTAB for section in image.sections)):
        with suppress(InputError):
            table = find_table(image)
            found = ({} if table is None else go_functions(table)) | found
        for section in image.sections_named(_DEBUG_DATA):
            with suppress(InputError, lzma.LZMAError):
                inner = ElfImage(lzma.decompress(image.section_bytes(section), lzma.FORMAT_XZ), image.name)
                found = {vaddr: (s.size, s.name) for vaddr, s in inner.functions().items()} | found
    return sorted((vaddr, size, name) for vaddr, (size, name) in found.items())
