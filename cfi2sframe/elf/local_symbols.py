# SPDX-License-Identifier: Apache-2.0
"""The symbols of an object that new relocations can refer to: no other definition can take their place."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHT_SYMTAB, STT_SECTION, STT_TLS

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage


class LocalSymbol(NamedTuple):
    """A local symbol: its number in the symbol table, and its address in the image's layout."""

    number: int
    vaddr: int


def local_symbols(image: ElfImage) -> dict[int, LocalSymbol]:
    """Return a local symbol for each section of an object that has one, by the section's index.

    The section's own symbol is preferred to others, which come in the table's order. Raises `ElfError` when the table
    leaves the file.
    """
    found: dict[int, LocalSymbol] = {}
    own = set[int]()
    table = next((table for table in image.symbol_tables if table.type == SHT_SYMTAB), None)
    # The first symbols of a table are its local ones; sh_info has the index of the first of the others.
    for number, symbol in enumerate(islice(image.symbols(table), table.info) if table is not None else ()):
        if symbol.vaddr is None or symbol.type == STT_TLS or symbol.section_index in own:
            continue
        if symbol.type == STT_SECTION:
            own.add(symbol.section_index)
            found[symbol.section_index] = LocalSymbol(number, symbol.vaddr)
        else:
            found.setdefault(symbol.section_index, LocalSymbol(number, symbol.vaddr))
    return found
