# SPDX-License-Identifier: Apache-2.0
"""What holds at which address: FDEs, and PLT stubs, whose instructions say more than their CFI."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.overlaps import Arrangement, Piece, Pieces, Ranges, arrange
from cfi2sframe.plt.scan_records import CfiSpan, StubReason, StubScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.dwarf.programs import Cfi
    from cfi2sframe.elf.image import ElfImage


class CodeMap(NamedTuple):
    """The addresses of an image, each given to one FDE or to the stubs.

    `pieces` are those of the arrangement without the stubs' addresses; `replaced` are the FDEs, by number, that have
    no address left because stubs have them all.
    """

    arrangement: Arrangement
    pieces: Pieces
    stubs: StubScan
    replaced: frozenset[int]


def map_code(image: ElfImage, cfi: Cfi, version: int, *, with_stubs: bool = True) -> CodeMap:
    """Decide what holds at which address. Stubs are looked for in linked files only."""
    entries = cfi.entries
    ranges = Ranges(entries.starts, entries.sizes, lambda number: entries.programs[number].number)
    arrangement = arrange(ranges, image.not_code)
    stubs = StubScan()
    if with_stubs and not image.is_relocatable:
        from cfi2sframe.plt.scan_stubs import scan_stubs

        stubs = scan_stubs(image, version, _CfiAt(arrangement.pieces, cfi).span)
    taken = sorted(_taken(stubs))
    if not taken:
        return CodeMap(arrangement, arrangement.pieces, stubs, frozenset())
    # Stubs lie close together: most pieces are nowhere near.
    pieces = arrangement.pieces
    first = bisect_right(pieces.ends, taken[0][0])
    last = bisect_left(pieces.starts, max(end for _, end in taken))
    near = Pieces(pieces.numbers[first:last], pieces.starts[first:last], pieces.ends[first:last])
    left = Pieces.of(list(_without(near, taken)))
    replaced = set(near.numbers).difference(left.numbers)
    return CodeMap(arrangement, pieces.replaced([(first, last, left)]), stubs, frozenset(replaced))


def _taken(stubs: StubScan) -> Iterator[tuple[int, int]]:
    """Yield the ranges of which CFI has no say: described stubs, and those where it contradicts the instructions."""
    for function in stubs.functions:
        yield function.start_vaddr, function.start_vaddr + function.size
    for skip in stubs.left_out:
        if skip.reason is StubReason.CFI_DIFFERS:
            yield skip.start_vaddr, skip.start_vaddr + skip.size


class _CfiAt:
    """The CFI in force at an address, for the analysis of stubs."""

    def __init__(self, pieces: Pieces, cfi: Cfi) -> None:
        self.pieces = pieces
        self.cfi = cfi

    def span(self, vaddr: int) -> CfiSpan:
        """Return the row at an address and where it ends; no row where no FDE holds."""
        numbers, piece_starts, piece_ends = self.pieces
        index = bisect_right(piece_starts, vaddr) - 1
        if index < 0 or vaddr >= piece_ends[index]:
            following = piece_starts[index + 1 : index + 2]
            return CfiSpan(following[0] if following else 1 << 64, None)
        entries = self.cfi.entries
        starts, states, _ = entries.programs[numbers[index]].rows
        start_vaddr = entries.starts[numbers[index]]
        row = bisect_right(starts, vaddr - start_vaddr)
        end = start_vaddr + starts[row] if row < len(starts) else piece_ends[index]
        return CfiSpan(min(end, piece_ends[index]), states[row - 1])


def _without(pieces: Pieces, taken: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Yield what is left of ascending pieces when ascending ranges are taken out."""
    position = 0
    for number, start, end in zip(*pieces, strict=True):
        begin = start
        while position < len(taken) and taken[position][1] <= begin:
            position += 1
        ahead = position
        while ahead < len(taken) and taken[ahead][0] < end:
            if taken[ahead][0] > begin:
                yield Piece(number, begin, taken[ahead][0])
            begin = max(begin, taken[ahead][1])
            ahead += 1
        if begin < end:
            yield Piece(number, begin, end)
