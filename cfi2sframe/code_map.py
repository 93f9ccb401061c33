# SPDX-License-Identifier: Apache-2.0
"""Which FDE holds an address, or whether a PLT stub does, and where padding follows.

For stubs, instructions override the CFI.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.overlaps import Pieces, Ranges, resolve_overlaps
from cfi2sframe.padding import Padding, find_padding
from cfi2sframe.plt.scan_records import CfiSpan, StubScan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.reasons import DropReason

_ADDRESS_END: Final = 1 << 64


class CodeMap(NamedTuple):
    """The virtual addresses of an image, each given to one FDE or to the stubs at most.

    `pieces` are the ranges of FDEs. FDEs without a range are in `dropped`, with the reason, or in `replaced` when stubs
    hold all of theirs; `overlapped` FDEs have lost addresses to other FDEs. All of these are numbers of FDEs. `padding`
    is what follows pieces and belongs to none: described functions reach over it.
    """

    pieces: Pieces
    stubs: StubScan
    dropped: dict[int, DropReason]
    overlapped: frozenset[int]
    replaced: frozenset[int]
    padding: Padding


def map_code(image: ElfImage, entries: CfiEntries, version: int) -> CodeMap:
    """Give each address to one FDE or to the stubs, which only linked files have; `version` is that of SFrame.

    Raises `InputError` when capstone cannot be loaded.
    """
    ranges = Ranges(entries.starts, entries.sizes, entries.program_numbers, entries.precedence)
    resolved = resolve_overlaps(ranges, image.not_code)
    pieces = resolved.pieces
    stubs, replaced = StubScan(), frozenset[int]()
    if not image.is_relocatable:
        from cfi2sframe.plt.scan_stubs import scan_stubs

        stubs = scan_stubs(image, version, _CfiAt(pieces, entries).span)
        pieces = resolved.pieces.without(sorted(_stub_ranges(stubs)))
        # A stub may leave an FDE a piece elsewhere.
        replaced = frozenset(resolved.pieces.numbers).difference(pieces.numbers)
    padding = _padding_after(image, pieces, stubs)
    return CodeMap(pieces, stubs, resolved.dropped, resolved.overlapped, replaced, padding)


def _padding_after(image: ElfImage, pieces: Pieces, stubs: StubScan) -> Padding:
    """Return the padding after pieces, which ends where a piece or a stub starts."""
    stub_starts = [stub.start_vaddr for stub in stubs.functions]
    stub_ends = [stub.start_vaddr + stub.size for stub in stubs.functions]
    padding = find_padding(image, sorted([*pieces.starts, *stub_starts]), sorted([*pieces.ends, *stub_ends]))
    return padding.without(frozenset(stub_ends))


def _stub_ranges(stubs: StubScan) -> Iterator[tuple[int, int]]:
    """Yield the ranges where the stub analysis overrides the CFI: described stubs, and those that contradict it."""
    for function in stubs.functions:
        yield function.start_vaddr, function.start_vaddr + function.size
    for skip in stubs.left_out:
        if skip.overrides_cfi:
            yield skip.start_vaddr, skip.start_vaddr + skip.size


class _CfiAt:
    """The CFI in force at an address, for the analysis of stubs."""

    def __init__(self, pieces: Pieces, entries: CfiEntries) -> None:
        self.pieces = pieces
        self.entries = entries

    def span(self, vaddr: int) -> CfiSpan:
        """Return the row state in force at an address, and where it ends; between FDEs there is none."""
        numbers, piece_starts, piece_ends = self.pieces
        index = bisect_right(piece_starts, vaddr) - 1
        if index < 0 or vaddr >= piece_ends[index]:
            following = piece_starts[index + 1 : index + 2]
            return CfiSpan(following[0] if following else _ADDRESS_END, None)
        entry = numbers[index]
        table = self.entries.programs[self.entries.program_numbers[entry]].table
        start_vaddr = self.entries.starts[entry]
        row = bisect_right(table.starts, vaddr - start_vaddr)
        end = start_vaddr + table.starts[row] if row < len(table.starts) else piece_ends[index]
        return CfiSpan(min(end, piece_ends[index]), table.states[row - 1])
