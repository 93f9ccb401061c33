# SPDX-License-Identifier: Apache-2.0
"""Place lowered programs and stubs as functions at their addresses, none larger than a record can hold.

What depends on a function's address and size happens here: pieces of overlapping FDEs become functions, those of too
many rows are split, those that no record can hold are skipped, and those before padding reach over it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.conversion.lower import InParts, Result, Skip, pieces_within
from cfi2sframe.conversion.owners import CodeMap
from cfi2sframe.conversion.reasons import Fate, SkipReason
from cfi2sframe.dwarf.fdes import CfiEntries, FdeIndex
from cfi2sframe.sframe.model import Function, FunctionBody

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF
#: What becomes of an FDE with code of its own.
_FATES: Final = {FunctionBody: Fate.DESCRIBED, InParts: Fate.IN_PARTS, Skip: Fate.LEFT_OUT}


class Placed(NamedTuple):
    """A function at its virtual address: its size in bytes, its rows, and the index of its FDE (None: a stub)."""

    start_vaddr: int
    size: int
    body: FunctionBody
    entry: FdeIndex | None

    def split(self) -> "list[Placed]":
        """Return the function in parts that have no more rows than version 3 can count."""
        edges = (*self.body.starts[::V3_MAX_FRES], self.size)
        return [
            Placed(self.start_vaddr + first, last - first, self.body.cut(first, last), self.entry)
            for first, last in pairwise(edges)
        ]


def results_of(
    entries: CfiEntries, lowered: Sequence[Result], refused: Mapping[FdeIndex, str] = MappingProxyType({})
) -> tuple[Result, ...]:
    """Return what the target can say of each FDE, whoever owns its addresses, given the result of each program.

    It says nothing of functions of 4 GiB or more, of what lies past the code, nor of those `refused`.
    """
    results = list(map(lowered.__getitem__, entries.program_of))
    if max(entries.sizes, default=0) > _MAX_FUNCTION_SIZE:
        for place, size in enumerate(entries.sizes):
            if size > _MAX_FUNCTION_SIZE:
                results[place] = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
    for place in entries.clipped:
        result, size = results[place], entries.sizes[place]
        if not isinstance(result, Skip):
            starts, pieces = result if isinstance(result, InParts) else ((0,), (result,))
            results[place] = InParts((*starts, size), (*pieces, Skip(SkipReason.PAST_CODE, "", size)))
    for fde, why in refused.items():
        results[fde] = Skip(SkipReason.READER, why, 0)
    return tuple(results)


def fates_of(entries: CfiEntries, results: Sequence[Result], code_map: CodeMap) -> tuple[Fate, ...]:
    """Return what became of each FDE, and of each function derived from instructions."""
    fates = [_FATES[type(result)] for result in results]
    for fde, fate in code_map.without_code.items():
        fates[fde] = fate
    for derived in entries.sources.get("code", ()):
        is_described = fates[derived] in (Fate.DESCRIBED, Fate.IN_PARTS)
        fates[derived] = Fate.DERIVED if is_described else Fate.NOT_DERIVED
    return tuple(fates)


def holes_of(entries: CfiEntries, results: Sequence[Result], code_map: CodeMap) -> Iterator[tuple[int, int]]:
    """Yield start and end, as virtual addresses, of the holes of FDEs in what these own, ascending."""
    for start_vaddr, end_vaddr, fde in code_map.of_fdes:
        result, vaddr = results[fde], entries.starts[fde]
        if isinstance(result, InParts):
            for start, end, piece in pieces_within(result, start_vaddr - vaddr, end_vaddr - vaddr):
                if isinstance(piece, Skip):
                    yield vaddr + start, vaddr + end


def place_functions(
    entries: CfiEntries, results: Sequence[Result], code_map: CodeMap, version: int, *, in_section_order: bool
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
        for start, end, piece in pieces_within(results[owner], start_vaddr - vaddr, end_vaddr - vaddr):
            if not isinstance(piece, Skip):
                size = padding_ends.get(vaddr + end, vaddr + end) - vaddr - start
                placed.append(Placed(vaddr + start, min(size, _MAX_FUNCTION_SIZE), piece, owner))
    if in_section_order:
        placed.sort(key=attrgetter("entry", "start_vaddr"))
    if version < SFRAME_VERSION_3 or all(len(each.body.starts) <= V3_MAX_FRES for each in placed):
        return placed
    return [part for each in placed for part in each.split()]
