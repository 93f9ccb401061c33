# SPDX-License-Identifier: Apache-2.0
"""What holds at which address: FDEs, and PLT stubs, whose instructions say more than their CFI."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.arrange import Arrangement, Piece, Ranges, arrange
from cfi2sframe.plt.records import CfiSpan, StubReason, StubScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.interpret import Cfi


class CodeMap(NamedTuple):
    """The addresses of an image, each given to one FDE or to the stubs.

    `pieces` are those of the arrangement without the stubs' addresses; `replaced` are the FDEs, by number, that have
    no address left because stubs have them all.
    """

    arrangement: Arrangement
    pieces: tuple[Piece, ...]
    stubs: StubScan
    replaced: frozenset[int]


def map_code(image: ElfImage, cfi: Cfi, version: int, *, with_stubs: bool = True) -> CodeMap:
    """Decide what holds at which address. Stubs are looked for in linked files only."""
    entries = cfi.entries
    contents = [program[0] for program in entries.programs]
    arrangement = arrange(Ranges(entries.starts, entries.sizes, contents), image.holds_code)
    stubs = StubScan()
    if with_stubs and not image.is_relocatable:
        from cfi2sframe.plt.scan import scan_stubs

        stubs = scan_stubs(image, version, _CfiAt(arrangement.pieces, cfi).span)
    taken = sorted(_taken(stubs))
    if not taken:
        return CodeMap(arrangement, arrangement.pieces, stubs, frozenset())
    # Stubs lie close together: most pieces are nowhere near.
    pieces = arrangement.pieces
    first = bisect_right(pieces, taken[0][0], key=lambda piece: piece.end_vaddr)
    last = bisect_left(pieces, max(end for _, end in taken), key=lambda piece: piece.start_vaddr)
    near = tuple(_without(pieces[first:last], taken))
    replaced = {piece.number for piece in pieces[first:last]} - {piece.number for piece in near}
    return CodeMap(arrangement, (*pieces[:first], *near, *pieces[last:]), stubs, frozenset(replaced))


def _taken(stubs: StubScan) -> Iterator[tuple[int, int]]:
    """Yield the ranges of which CFI has no say: described stubs, and those where it contradicts the instructions."""
    for function in stubs.functions:
        yield function.start_vaddr, function.start_vaddr + function.size
    for skip in stubs.left_out:
        if skip.reason is StubReason.CFI_DIFFERS:
            yield skip.start_vaddr, skip.start_vaddr + skip.size


class _CfiAt:
    """The CFI in force at an address, for the analysis of stubs."""

    def __init__(self, pieces: Sequence[Piece], cfi: Cfi) -> None:
        self.pieces = pieces
        self.cfi = cfi

    def span(self, vaddr: int) -> CfiSpan:
        """Return the row at an address and where it ends; no row where no FDE holds."""
        index = bisect_right(self.pieces, vaddr, key=lambda piece: piece.start_vaddr) - 1
        if index < 0 or vaddr >= self.pieces[index].end_vaddr:
            following = self.pieces[index + 1 : index + 2]
            return CfiSpan(following[0].start_vaddr if following else 1 << 64, None)
        piece = self.pieces[index]
        entries = self.cfi.entries
        starts, states, _ = entries.programs[piece.number].rows
        start_vaddr = entries.starts[piece.number]
        row = bisect_right(starts, vaddr - start_vaddr)
        end = start_vaddr + starts[row] if row < len(starts) else piece.end_vaddr
        return CfiSpan(min(end, piece.end_vaddr), states[row - 1])


def _without(pieces: Sequence[Piece], taken: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Yield what is left of ascending pieces when ascending ranges are taken out."""
    position = 0
    for number, start, end in pieces:
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
