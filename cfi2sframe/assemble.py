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

from cfi2sframe.lower import Skip
from cfi2sframe.overlaps import Pieces, spliced
from cfi2sframe.padding import MAX_ALIGNMENT
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.sframe.model import Function, FunctionBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.padding import Padding

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Outcomes(NamedTuple):
    """The result of each sound FDE, by the FDE's number: a body, or why the target has none.

    `skipped` has the numbers of the FDEs whose result is a `Skip`.
    """

    results: tuple[FunctionBody | Skip, ...]
    skipped: frozenset[int]


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


def outcomes_of(entries: CfiEntries, results: Sequence[FunctionBody | Skip]) -> Outcomes:
    """Return the outcome of each FDE, given the result of each program; functions of 4 GiB or more are skipped."""
    outcomes = list(map(results.__getitem__, entries.program_numbers))
    skipped_programs = {number for number, result in enumerate(results) if isinstance(result, Skip)}
    skipped = set[int]()
    if skipped_programs:
        skipped.update(compress(count(), map(skipped_programs.__contains__, entries.program_numbers)))
    if max(entries.sizes, default=0) > _MAX_FUNCTION_SIZE:
        for number in compress(count(), map(_MAX_FUNCTION_SIZE.__lt__, entries.sizes)):
            outcomes[number] = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{entries.sizes[number]:,} bytes", 0)
            skipped.add(number)
    return Outcomes(tuple(outcomes), frozenset(skipped))


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

    Nearly every FDE is one piece with all of its program's rows. The others are cut to their pieces, and split into
    functions of at most `max_row_count` rows.
    """
    if not outcomes.skipped.isdisjoint(pieces.numbers):
        is_described = [number not in outcomes.skipped for number in pieces.numbers]
        pieces = Pieces(*(tuple(compress(column, is_described)) for column in pieces))
    bodies = cast("list[FunctionBody]", list(map(outcomes.results.__getitem__, pieces.numbers)))
    sizes = list(map(sub, pieces.ends, pieces.starts))
    functions = Functions(pieces.starts, sizes, bodies, pieces.numbers)
    changes = []
    for index in _partial_or_long(functions, list(map(entries.sizes.__getitem__, pieces.numbers)), max_row_count):
        start, size, number = functions.starts[index], sizes[index], pieces.numbers[index]
        delta = start - entries.starts[number]
        body = bodies[index].cut(delta, delta + size)
        parts = [
            Function(start + first, last - first, body.cut(first, last))
            for first, last in pairwise((*body.starts[::max_row_count], size))
        ]
        changes.append((index, index + 1, Functions.of(parts, [number] * len(parts))))
    return functions.replaced(changes) if changes else functions


def _partial_or_long(functions: Functions, fde_sizes: Sequence[int], max_row_count: int) -> list[int]:
    """Return the indices of functions that are a part of their FDE, or that have more than `max_row_count` rows."""
    indices = set(compress(count(), map(ne, functions.sizes, fde_sizes)))
    # Each row holds for at least a byte, so a function of few bytes need not be looked at.
    for index in compress(count(), map(max_row_count.__lt__, functions.sizes)):
        if len(functions.bodies[index].starts) > max_row_count:
            indices.add(index)
    return sorted(indices)
