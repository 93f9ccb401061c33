# SPDX-License-Identifier: Apache-2.0
"""Function names by address."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.errors import InputError
from cfi2sframe.trace.failures import guarded

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.sections import ElfSection


class FoundSymbol(NamedTuple):
    """The function that holds an address: its linkage name, and the address's distance from its start."""

    name: str
    offset: int

    def __repr__(self) -> str:
        return f"{self.name}+0x{self.offset:x}"


class SymbolTable:
    """A file's function symbols, from .symtab and .dynsym, searchable by address.

    `trouble` describes a bug of this program that occurred, and is empty otherwise.
    """

    def __init__(self, image: ElfImage) -> None:
        self.trouble = ""
        self._image = image
        #: By address: rank, size, name.
        best: dict[int, tuple[int, int, str]] = {}
        for table in image.symbol_tables:
            guarded(partial(self._read, table, best), self._failed)
        self._starts = sorted(best)
        self._sizes = [best[start][1] for start in self._starts]
        self._names = [best[start][2] for start in self._starts]

    def _read(self, table: ElfSection, best: dict[int, tuple[int, int, str]]) -> None:
        try:
            for symbol in self._image.symbols(table):
                if symbol.vaddr is None or not symbol.name or not _may_be_function(symbol.type, symbol.name):
                    continue
                # Functions are preferred to labels, then symbols with a size, then the first.
                rank = (symbol.type == STT_NOTYPE) * 2 + (symbol.size == 0)
                known = best.get(symbol.vaddr)
                if known is None or rank < known[0]:
                    best[symbol.vaddr] = (rank, symbol.size, symbol.name)
        except InputError:
            # Names are optional: a damaged or truncated table has none.
            pass

    def _failed(self, reason: str) -> None:
        self.trouble = reason

    def find(self, vaddr: int) -> FoundSymbol | None:
        """Return the function at an address; one of unknown size reaches to the next symbol or its section's end."""
        index = bisect_right(self._starts, vaddr) - 1
        # A function may hold labels, and a small function's symbol may stand inside a larger one's range.
        for candidate in range(index, max(-1, index - 8), -1):
            start, size = self._starts[candidate], self._sizes[candidate]
            if vaddr < start + size or (size == 0 and candidate == index and self._same_code(start, vaddr)):
                return FoundSymbol(self._names[candidate], vaddr - start)
        return None

    def _same_code(self, start: int, vaddr: int) -> bool:
        code = self._image.code_range_of(vaddr)
        return code is not None and code.start_vaddr <= start


def _may_be_function(symbol_type: int, name: str) -> bool:
    # AArch64's mapping symbols ($x, $d) mark instructions and data; they are no names.
    return symbol_type in (STT_FUNC, STT_GNU_IFUNC) or (symbol_type == STT_NOTYPE and name[0] != "$")
