# SPDX-License-Identifier: Apache-2.0
"""Functions at their addresses, of a size that holds, from lowered programs and from stubs.

Everything that a function's place and size do to what its program says happens here: pieces of FDEs that overlap, rows
that one function cannot hold, functions that no record can hold.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import compress, count, pairwise
from operator import ne, sub
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cfi2sframe.lower import Skip
from cfi2sframe.overlaps import Pieces, spliced
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.sframe.model import Function, FunctionBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import CfiEntries

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Outcomes(NamedTuple):
    """What the target can say of each sound FDE, by the FDE's number; `skipped` has the numbers of the `Skip`s."""

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

    def replaced(self, changes: Sequence[_Change]) -> Functions:
        """Return the columns with the changes made, which ascend and do not overlap."""
        return Functions(
            spliced(self.starts, [(c.first, c.last, c.others.starts) for c in changes]),
            spliced(self.sizes, [(c.first, c.last, c.others.sizes) for c in changes]),
            spliced(self.bodies, [(c.first, c.last, c.others.bodies) for c in changes]),
            spliced(self.entries, [(c.first, c.last, c.others.entries) for c in changes]),
        )


class _Change(NamedTuple):
    """Others in place of the functions from `first` up to `last`."""

    first: int
    last: int
    others: Functions


def outcomes_of(entries: CfiEntries, results: Sequence[FunctionBody | Skip]) -> Outcomes:
    """Return the outcome of each FDE, given the result of each program."""
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
    """Return the functions of FDEs and stubs.

    By ascending address; `in_section_order`: in the order of the FDEs, without stubs, as linkers expect it of objects.
    """
    pieces = code_map.pieces
    if in_section_order:
        pieces = Pieces.of(sorted(pieces.records))
    functions = _functions_of(pieces, entries, outcomes, V3_MAX_FRES if version >= SFRAME_VERSION_3 else sys.maxsize)
    insertions = []
    for stub in code_map.stubs.functions:
        place = bisect_left(functions.starts, stub.start_vaddr)
        insertions.append(_Change(place, place, Functions.of([stub], [None])))
    return functions.replaced(insertions) if insertions else functions


def _functions_of(pieces: Pieces, entries: CfiEntries, outcomes: Outcomes, max_row_count: int) -> Functions:
    """Return the functions of FDEs: nearly every FDE is one piece with all of its program's rows."""
    if not outcomes.skipped.isdisjoint(pieces.numbers):
        is_described = [number not in outcomes.skipped for number in pieces.numbers]
        pieces = Pieces(*(tuple(compress(column, is_described)) for column in pieces))
    bodies = cast("list[FunctionBody]", list(map(outcomes.results.__getitem__, pieces.numbers)))
    sizes = list(map(sub, pieces.ends, pieces.starts))
    functions = Functions(pieces.starts, sizes, bodies, pieces.numbers)
    changes = []
    for place in _unusual(functions, list(map(entries.sizes.__getitem__, pieces.numbers)), max_row_count):
        start, size, number = functions.starts[place], sizes[place], pieces.numbers[place]
        delta = start - entries.starts[number]
        body = bodies[place].cut(delta, delta + size)
        parts = [
            Function(start + first, last - first, body.cut(first, last))
            for first, last in pairwise((*body.starts[::max_row_count], size))
        ]
        changes.append(_Change(place, place + 1, Functions.of(parts, [number] * len(parts))))
    return functions.replaced(changes) if changes else functions


def _unusual(functions: Functions, fde_sizes: Sequence[int], max_row_count: int) -> list[int]:
    """Return the places of functions that are a part of their FDE, or that have more rows than one function may."""
    places = set(compress(count(), map(ne, functions.sizes, fde_sizes)))
    # A row has a byte at least.
    for place in compress(count(), map(max_row_count.__lt__, functions.sizes)):
        if len(functions.bodies[place].starts) > max_row_count:
            places.add(place)
    return sorted(places)
