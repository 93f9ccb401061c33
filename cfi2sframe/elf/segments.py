# SPDX-License-Identifier: Apache-2.0
"""The map between a linked file's addresses and its file offsets, which its PT_LOAD entries make.

One entry translates any number (`ProgramHeader.vaddr_of`, `ProgramHeader.offset_of`), also past its end: there it may
grow. The map translates only what is in the file.
"""

from bisect import bisect_right
from collections.abc import Iterable

from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.elf.headers import ProgramHeader
from cfi2sframe.range_map import Span, common


class SegmentMap:
    """The PT_LOAD entries of some program headers. Where they overlap, the one that starts last counts."""

    def __init__(self, segments: Iterable[ProgramHeader]) -> None:
        #: In address order.
        self.loads = tuple(sorted((p for p in segments if p.type == PT_LOAD), key=lambda p: p.vaddr))
        self._starts = [p.vaddr for p in self.loads]

    def last_from(self, vaddr: int) -> ProgramHeader | None:
        """Return the last PT_LOAD that starts at or before an address, wherever it ends; None before the first."""
        index = bisect_right(self._starts, vaddr) - 1
        return self.loads[index] if index >= 0 else None

    def load_of(self, vaddr: int, size: int = 1) -> ProgramHeader | None:
        """Return the PT_LOAD that has `size` bytes at an address in the file; None where none has all of them."""
        load = self.last_from(vaddr)
        return None if load is None or vaddr + size > load.stored_vaddrs.end else load

    def offset_of(self, vaddr: int, size: int = 1) -> int | None:
        """Return the file offset of `size` bytes at an address; None where no PT_LOAD has all of them in the file."""
        load = self.load_of(vaddr, size)
        return None if load is None else load.offset_of(vaddr)

    def vaddrs_of(self, offsets: Iterable[Span]) -> list[Span]:
        """Return the addresses at which spans of file offsets are mapped, without unmapped parts."""
        offsets = list(offsets)
        return [
            Span(load.vaddr_of(start), load.vaddr_of(end))
            for load in self.loads
            for start, end in common(offsets, [load.file_span])
        ]
