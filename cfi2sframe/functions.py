# SPDX-License-Identifier: Apache-2.0
"""Functions from lowered programs and from stubs: at their addresses, and no larger than a record can hold.

Whatever depends on a function's address and size happens here: FDEs that overlap are cut into pieces, functions of too
many rows are split, functions that no record can hold are skipped, and those before padding reach over it.
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.lower import InParts, Skip
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.overlaps import Pieces
    from cfi2sframe.sframe.model import FunctionBody

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Outcomes(NamedTuple):
    """The result of each sound FDE, by the FDE's number: a body, bodies of its parts, or why the target has none.

    `skipped` has the numbers of the FDEs whose result is a `Skip`, `in_parts` those of an `InParts`.
    """

    results: tuple[FunctionBody | InParts | Skip, ...]
    skipped: frozenset[int]
    in_parts: frozenset[int] = frozenset()

    def without(self, refused: Mapping[int, str]) -> Outcomes:
        """Return the outcomes with these FDEs left out, for the reason of each."""
        if not refused:
            return self
        results = list(self.results)
        for number, why in refused.items():
            results[number] = Skip(SkipReason.READER, why, 0)
        return Outcomes(tuple(results), self.skipped | refused.keys(), self.in_parts - refused.keys())

    def holes(self, entries: CfiEntries, pieces: Pieces) -> Iterator[tuple[int, int]]:
        """Yield the virtual addresses, start and end, that pieces of FDEs have of holes, in the order of the pieces."""
        if self.in_parts.isdisjoint(pieces.numbers):
            return
        for number, start_vaddr, end_vaddr in zip(*pieces, strict=True):
            result = self.results[number]
            if isinstance(result, InParts):
                vaddr = entries.starts[number]
                for start, end, piece in result.within(start_vaddr - vaddr, end_vaddr - vaddr):
                    if isinstance(piece, Skip):
                        yield vaddr + start, vaddr + end


class Placed(NamedTuple):
    """A function at its virtual address: its size in bytes, its rows, and the number of its FDE (None: a stub)."""

    start_vaddr: int
    size: int
    body: FunctionBody
    entry: int | None

    def split(self) -> list[Placed]:
        """Return the function in parts of as many rows as version 3 can count."""
        edges = (*self.body.starts[::V3_MAX_FRES], self.size)
        return [
            Placed(self.start_vaddr + first, last - first, self.body.cut(first, last), self.entry)
            for first, last in pairwise(edges)
        ]


def outcomes_of(entries: CfiEntries, results: Sequence[FunctionBody | InParts | Skip]) -> Outcomes:
    """Return the outcome of each FDE, given the result of each program; functions of 4 GiB or more are skipped."""
    outcomes = list(map(results.__getitem__, entries.program_numbers))
    for number, size in enumerate(entries.sizes):
        if size > _MAX_FUNCTION_SIZE:
            outcomes[number] = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
    for number in entries.clipped:
        outcomes[number] = _clipped(outcomes[number], entries.sizes[number])
    return Outcomes(
        tuple(outcomes),
        frozenset([number for number, result in enumerate(outcomes) if isinstance(result, Skip)]),
        frozenset([number for number, result in enumerate(outcomes) if isinstance(result, InParts)]),
    )


def _clipped(result: FunctionBody | InParts | Skip, size: int) -> InParts | Skip:
    """Return the result of a function of some bytes, with what its FDE lost after them as a hole."""
    if isinstance(result, Skip):
        return result
    parts = result if isinstance(result, InParts) else InParts((0,), (result,))
    return parts.followed_by(Skip(SkipReason.PAST_CODE, "", size))


def place_functions(
    entries: CfiEntries, outcomes: Outcomes, code_map: CodeMap, version: int, *, in_section_order: bool
) -> list[Placed]:
    """Return the functions of FDEs and stubs, for a version of SFrame.

    They are in ascending order of their addresses; with `in_section_order`, in the order of the FDEs, as linkers expect
    it of objects (which have no stubs).
    """
    results, starts, sizes = outcomes.results, entries.starts, entries.sizes
    padding = code_map.padding.sizes

    def place(start_vaddr: int, end_vaddr: int, body: FunctionBody, entry: int) -> Placed:
        size = end_vaddr - start_vaddr + padding.get(end_vaddr, 0)
        return Placed(start_vaddr, min(size, _MAX_FUNCTION_SIZE), body, entry)

    placed = [Placed(stub.start_vaddr, stub.size, stub.body, None) for stub in code_map.stubs.functions]
    for number, start_vaddr, end_vaddr in zip(*code_map.pieces, strict=True):
        result, vaddr = results[number], starts[number]
        if isinstance(result, InParts):
            for start, end, piece in result.within(start_vaddr - vaddr, end_vaddr - vaddr):
                if not isinstance(piece, Skip):
                    placed.append(place(vaddr + start, vaddr + end, piece, number))
        elif not isinstance(result, Skip):
            # Nearly every FDE is one piece.
            is_whole = end_vaddr - start_vaddr == sizes[number]
            body = result if is_whole else result.cut(start_vaddr - vaddr, end_vaddr - vaddr)
            placed.append(place(start_vaddr, end_vaddr, body, number))
    placed.sort(key=attrgetter("entry", "start_vaddr") if in_section_order else attrgetter("start_vaddr"))
    if version < SFRAME_VERSION_3:
        return placed
    return [part for each in placed for part in (each.split() if len(each.body.starts) > V3_MAX_FRES else (each,))]
