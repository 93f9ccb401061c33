# SPDX-License-Identifier: Apache-2.0
"""Place lowered programs and stubs as functions at their addresses, none larger than a record can hold.

What depends on a function's address and size happens here: pieces of overlapping FDEs become functions, those of too
many rows are split, those that no record can hold are skipped, and those before padding reach over it.
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.conversion.lower import InParts, Skip, pieces_within
from cfi2sframe.conversion.reasons import Fate, SkipReason
from cfi2sframe.sframe.model import Function, FunctionBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cfi2sframe.conversion.owners import CodeMap
    from cfi2sframe.dwarf.programs import CfiEntries

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF
#: What becomes of an FDE with code of its own.
_FATES: Final = {FunctionBody: Fate.DESCRIBED, InParts: Fate.IN_PARTS, Skip: Fate.LEFT_OUT}


class Outcomes(NamedTuple):
    """The results of FDEs by number: a body, bodies of parts, or the reason why the target has none.

    `skipped` and `in_parts` have the results of the last two kinds, in ascending order.
    """

    results: tuple[FunctionBody | InParts | Skip, ...]
    skipped: dict[int, Skip]
    in_parts: dict[int, InParts]

    def holes(self, entries: CfiEntries, code_map: CodeMap) -> Iterator[tuple[int, int]]:
        """Yield start and end, as virtual addresses, of the holes in what FDEs own, ascending."""
        for start_vaddr, end_vaddr, number in code_map.of_fdes if self.in_parts else ():
            if number in self.in_parts:
                vaddr = entries.starts[number]
                for start, end, piece in pieces_within(self.in_parts[number], start_vaddr - vaddr, end_vaddr - vaddr):
                    if isinstance(piece, Skip):
                        yield vaddr + start, vaddr + end


class Placed(NamedTuple):
    """A function at its virtual address: its size in bytes, its rows, and the number of its FDE (None: a stub)."""

    start_vaddr: int
    size: int
    body: FunctionBody
    entry: int | None

    def split(self) -> list[Placed]:
        """Return the function in parts that have no more rows than version 3 can count."""
        edges = (*self.body.starts[::V3_MAX_FRES], self.size)
        return [
            Placed(self.start_vaddr + first, last - first, self.body.cut(first, last), self.entry)
            for first, last in pairwise(edges)
        ]


def outcomes_of(
    entries: CfiEntries,
    results: Sequence[FunctionBody | InParts | Skip],
    refused: Mapping[int, str] = MappingProxyType({}),
) -> Outcomes:
    """Return the outcome of each FDE, given the result of each program.

    Functions of 4 GiB or more are skipped, and those `refused`, by their numbers, for the reason of each.
    """
    outcomes = list(map(results.__getitem__, entries.program_numbers))
    for number, size in enumerate(entries.sizes):
        if size > _MAX_FUNCTION_SIZE:
            outcomes[number] = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
    for number in entries.clipped:
        result, size = outcomes[number], entries.sizes[number]
        if not isinstance(result, Skip):
            starts, pieces = result if isinstance(result, InParts) else ((0,), (result,))
            outcomes[number] = InParts((*starts, size), (*pieces, Skip(SkipReason.PAST_CODE, "", size)))
    for number, why in refused.items():
        outcomes[number] = Skip(SkipReason.READER, why, 0)
    return Outcomes(
        tuple(outcomes),
        {number: result for number, result in enumerate(outcomes) if isinstance(result, Skip)},
        {number: result for number, result in enumerate(outcomes) if isinstance(result, InParts)},
    )


def fates_of(outcomes: Outcomes, code_map: CodeMap) -> tuple[Fate, ...]:
    """Return what became of each FDE, by number."""
    fates = [_FATES[type(result)] for result in outcomes.results]
    for number, fate in code_map.without_code.items():
        fates[number] = fate
    return tuple(fates)


def place_functions(
    entries: CfiEntries, outcomes: Outcomes, code_map: CodeMap, version: int, *, in_section_order: bool
) -> list[Placed]:
    """Return the functions of FDEs and stubs, for a version of SFrame.

    They are in ascending order of their addresses; with `in_section_order`, in the order of the FDEs, as linkers expect
    it of objects (which have no stubs).
    """
    padding_ends = dict(code_map.padding)
    placed: list[Placed] = []
    for start_vaddr, end_vaddr, owner in code_map.owners:
        if owner is None:
            continue
        if isinstance(owner, Function):
            placed.append(Placed(owner.start_vaddr, owner.size, owner.body, None))
            continue
        vaddr = entries.starts[owner]
        for start, end, piece in pieces_within(outcomes.results[owner], start_vaddr - vaddr, end_vaddr - vaddr):
            if not isinstance(piece, Skip):
                size = padding_ends.get(vaddr + end, vaddr + end) - vaddr - start
                placed.append(Placed(vaddr + start, min(size, _MAX_FUNCTION_SIZE), piece, owner))
    if in_section_order:
        placed.sort(key=attrgetter("entry", "start_vaddr"))
    if version < SFRAME_VERSION_3:
        return placed
    return [part for each in placed for part in (each.split() if len(each.body.starts) > V3_MAX_FRES else (each,))]
