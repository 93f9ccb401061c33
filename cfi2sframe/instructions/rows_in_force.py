# SPDX-License-Identifier: Apache-2.0
"""Which row of the CFI is in force at an address."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.overlaps import Ranges, resolve_overlaps

if TYPE_CHECKING:
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage

_ADDRESS_END: Final = 1 << 64


class InForce(NamedTuple):
    """The row of an FDE, by its number, in force at `[start_vaddr, end_vaddr)`; without an FDE, both are None."""

    start_vaddr: int
    end_vaddr: int
    number: int | None = None
    row: RowState | None = None


class RowsInForce:
    """The rows of an image's CFI by address: where FDEs overlap, those that the conversion takes."""

    def __init__(self, image: ElfImage, entries: CfiEntries) -> None:
        self.entries = entries
        ranges = Ranges(entries.starts, entries.sizes, entries.program_numbers, entries.precedence)
        self.pieces = resolve_overlaps(ranges, image.not_code).pieces

    def at(self, vaddr: int) -> InForce:
        """Return what is in force at an address."""
        numbers, starts, ends = self.pieces
        index = bisect_right(starts, vaddr) - 1
        if index < 0 or vaddr >= ends[index]:
            return InForce(vaddr, starts[index + 1] if index + 1 < len(starts) else _ADDRESS_END)
        number = numbers[index]
        table = self.entries.programs[self.entries.program_numbers[number]].table
        start = self.entries.starts[number]
        following = bisect_right(table.starts, vaddr - start)
        end = start + table.starts[following] if following < len(table.starts) else ends[index]
        first = start + table.starts[following - 1]
        return InForce(max(first, starts[index]), min(end, ends[index]), number, table.states[following - 1])
