# SPDX-License-Identifier: Apache-2.0
"""Functions from lowered programs and from stubs: at their addresses, and no larger than a record can hold.

Whatever depends on a function's address and size happens here: FDEs that overlap are cut into pieces, functions of too
many rows are split, functions that no record can hold are skipped, and those before padding reach over it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import compress, count, pairwise
from operator import ne, sub
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cfi2sframe.lower import Hole, InParts, Part, Skip
from cfi2sframe.overlaps import Pieces, spliced
from cfi2sframe.padding import MAX_ALIGNMENT
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.sframe.model import Function, FunctionBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.padding import Padding

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class HolePiece(NamedTuple):
    """The virtual addresses `[start_vaddr, end_vaddr)` of a hole, or of a part of it where other FDEs cut it.

    `is_first`: the hole begins here.
    """

    start_vaddr: int
    end_vaddr: int
    hole: Hole
    is_first: bool


class Outcomes(NamedTuple):
    """The result of each sound FDE, by the FDE's number: a body, bodies of its parts, or why the target has none.

    `skipped` has the numbers of the FDEs whose result is a `Skip`, `in_parts` those of an `InParts`.
    """

    results: tuple[FunctionBody | InParts | Skip, ...]
    skipped: frozenset[int]
    in_parts: frozenset[int] = frozenset()

    def holes(self, entries: CfiEntries, pieces: Pieces) -> Iterator[HolePiece]:
        """Yield what pieces of FDEs have of holes, in the order of the pieces."""
        if self.in_parts.isdisjoint(pieces.numbers):
            return
        for number, start_vaddr, end_vaddr in zip(*pieces, strict=True):
            result = self.results[number]
            if isinstance(result, InParts):
                vaddr = entries.starts[number]
                for start, end, which in result.within(start_vaddr - vaddr, end_vaddr - vaddr):
                    if isinstance(which, Hole):
                        yield HolePiece(vaddr + start, vaddr + end, which, start == which.why.start_delta)


class Functions(NamedTuple):
    """Functions as columns: virtual addresses, sizes in bytes, bodies, and the numbers of their FDEs (None: a stub)."""

    starts: Sequence[int]
    sizes: Sequence[int]
    bodies: Sequence[FunctionBody]
    entries: Sequence[int | None]

    @property
    def records(self) -> tuple[Function, ...]:
        """The functions as records."""
        return tuple(map(Function, self.starts, self.sizes, self.bodies))

    @classmethod
    def of(cls, records: Sequence[Function], entries: Sequence[int | None]) -> Functions:
        """Return the columns of records and of their FDEs' numbers."""
        return cls(
            tuple([function.start_vaddr for function in records]),
            tuple([function.size for function in records]),
            tuple([function.body for function in records]),
            tuple(entries),
        )

    def reaching_over(self, padding: Padding) -> Functions:
        """Return the functions with the padding that follows each as a part of it: its last row stays in force."""
        if not padding.starts:
            return self
        added = padding.sizes
        sizes = [
            size + added.get(start + size, 0) if size < _MAX_FUNCTION_SIZE - MAX_ALIGNMENT else size
            for start, size in zip(self.starts, self.sizes, strict=True)
        ]
        return self._replace(sizes=sizes)

    def replaced(self, changes: Sequence[tuple[int, int, Functions]]) -> Functions:
        """Return the columns with others at the indices `[first, last)`, for ascending (first, last, others)."""
        return Functions(
            spliced(self.starts, [(first, last, others.starts) for first, last, others in changes]),
            spliced(self.sizes, [(first, last, others.sizes) for first, last, others in changes]),
            spliced(self.bodies, [(first, last, others.bodies) for first, last, others in changes]),
            spliced(self.entries, [(first, last, others.entries) for first, last, others in changes]),
        )


def outcomes_of(entries: CfiEntries, results: Sequence[FunctionBody | InParts | Skip]) -> Outcomes:
    """Return the outcome of each FDE, given the result of each program; functions of 4 GiB or more are skipped."""
    outcomes = list(map(results.__getitem__, entries.program_numbers))
    skipped = _entries_of(entries, {number for number, result in enumerate(results) if isinstance(result, Skip)})
    in_parts = _entries_of(entries, {number for number, result in enumerate(results) if isinstance(result, InParts)})
    if max(entries.sizes, default=0) > _MAX_FUNCTION_SIZE:
        for number in compress(count(), map(_MAX_FUNCTION_SIZE.__lt__, entries.sizes)):
            outcomes[number] = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{entries.sizes[number]:,} bytes", 0)
            skipped.add(number)
    for number, lost in entries.clipped.items():
        outcomes[number] = _clipped(outcomes[number], entries.sizes[number], lost)
    in_parts.update(entries.clipped)
    return Outcomes(tuple(outcomes), frozenset(skipped), frozenset(in_parts - skipped))


def _clipped(result: FunctionBody | InParts | Skip, size: int, lost: int) -> FunctionBody | InParts | Skip:
    """Return the result of a function of some bytes with what its FDE lost behind them as a hole."""
    if isinstance(result, Skip):
        return result
    hole = Hole(Skip(SkipReason.PAST_CODE, "", size), size + lost, 0)
    if isinstance(result, InParts):
        return InParts.of(result.parts, (*result.holes, hole))
    return InParts.of([Part(0, size, result)], [hole])


def _entries_of(entries: CfiEntries, programs: set[int]) -> set[int]:
    """Return the numbers of the FDEs that have one of some programs."""
    return set(compress(count(), map(programs.__contains__, entries.program_numbers))) if programs else set()


def assemble(
    entries: CfiEntries, outcomes: Outcomes, code_map: CodeMap, version: int, *, in_section_order: bool
) -> Functions:
    """Return the functions of FDEs and stubs, for a version of SFrame.

    They are in ascending order of their addresses; with `in_section_order`, in the order of the FDEs, as linkers expect
    it of objects (which have no stubs).
    """
    pieces = code_map.pieces
    if in_section_order:
        pieces = Pieces.of(sorted(pieces.records))
    max_row_count = V3_MAX_FRES if version >= SFRAME_VERSION_3 else sys.maxsize
    functions = _functions_of(pieces, entries, outcomes, max_row_count).reaching_over(code_map.padding)
    insertions = []
    for stub in code_map.stubs.functions:
        index = bisect_left(functions.starts, stub.start_vaddr)
        insertions.append((index, index, Functions.of([stub], [None])))
    return functions.replaced(insertions) if insertions else functions


def _functions_of(pieces: Pieces, entries: CfiEntries, outcomes: Outcomes, max_row_count: int) -> Functions:
    """Return the functions of the FDEs that are not skipped.

    Nearly every FDE is one piece with all of its program's rows. The others are cut to their pieces and parts, and
    split into functions of at most `max_row_count` rows.
    """
    if not outcomes.skipped.isdisjoint(pieces.numbers):
        is_described = [number not in outcomes.skipped for number in pieces.numbers]
        pieces = Pieces(*(tuple(compress(column, is_described)) for column in pieces))
    results = cast("list[FunctionBody | InParts]", list(map(outcomes.results.__getitem__, pieces.numbers)))
    sizes = list(map(sub, pieces.ends, pieces.starts))
    fde_sizes = list(map(entries.sizes.__getitem__, pieces.numbers))
    changes = []
    in_parts = set[int]()
    if outcomes.in_parts:
        in_parts.update(compress(count(), map(outcomes.in_parts.__contains__, pieces.numbers)))
    for index in sorted(in_parts | _partial_or_long(results, sizes, fde_sizes, max_row_count)):
        number = pieces.numbers[index]
        vaddr = entries.starts[number]
        delta = pieces.starts[index] - vaddr
        parts = [
            Function(vaddr + start + first, last - first, body.cut(first, last))
            for start, end, body in _bodies_within(results[index], delta, delta + sizes[index])
            for first, last in pairwise((*body.starts[::max_row_count], end - start))
        ]
        changes.append((index, index + 1, Functions.of(parts, [number] * len(parts))))
    # What is not a body is replaced.
    functions = Functions(pieces.starts, sizes, cast("list[FunctionBody]", results), pieces.numbers)
    return functions.replaced(changes) if changes else functions


def _bodies_within(result: FunctionBody | InParts, first: int, last: int) -> Iterator[tuple[int, int, FunctionBody]]:
    """Yield what a result describes of `[first, last)`, bytes from its FDE's start: a start, an end, and a body."""
    if not isinstance(result, InParts):
        yield first, last, result.cut(first, last)
        return
    for start, end, part in result.within(first, last):
        if isinstance(part, Part):
            yield start, end, part.body.cut(start - part.start_delta, end - part.start_delta)


def _partial_or_long(
    results: Sequence[FunctionBody | InParts], sizes: Sequence[int], fde_sizes: Sequence[int], max_row_count: int
) -> set[int]:
    """Return the indices of pieces that are not all of their FDE, and of bodies with more than `max_row_count` rows."""
    indices = set(compress(count(), map(ne, sizes, fde_sizes)))
    # Each row holds for at least a byte, so a function of few bytes need not be looked at.
    for index in compress(count(), map(max_row_count.__lt__, sizes)):
        result = results[index]
        if isinstance(result, FunctionBody) and len(result.starts) > max_row_count:
            indices.add(index)
    return indices
