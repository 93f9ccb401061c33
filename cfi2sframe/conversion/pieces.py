# SPDX-License-Identifier: Apache-2.0
"""Pieces: the addresses that an FDE, a stub or a derived function owns, with rows, or the reason why not.

They are made once, after each address has an owner. Placement, reports, conditions and relocations read them; the fate
of an FDE follows from its pieces.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.lower import Lowered, pieces_within
from cfi2sframe.conversion.owners import CodeMap
from cfi2sframe.dwarf.fdes import CfiEntries, FdeIndex
from cfi2sframe.sframe.model import Function, FunctionBody
from cfi2sframe.why import Reason, Why

#: All versions store a function's size in 32 bits.
MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Piece(NamedTuple):
    """Addresses `[start_vaddr, end_vaddr)` that one origin owns, and their rows, or the reason why not.

    `origin` is the index of an FDE or a derived function in `Cfi.entries`; None is a PLT stub. Rows count their starts
    from `start_vaddr`.
    """

    start_vaddr: int
    end_vaddr: int
    origin: FdeIndex | None
    said: FunctionBody | Why


def results_by_fde(
    entries: CfiEntries, lowered: Sequence[Lowered], refused: Mapping[FdeIndex, str] = MappingProxyType({})
) -> list[Lowered]:
    """Return the result of each FDE, whoever owns its addresses, given the result of each program.

    Functions of 4 GiB or more have no rows, nor have those `refused`.
    """
    results = list(map(lowered.__getitem__, entries.program_of))
    if max(entries.sizes, default=0) > MAX_FUNCTION_SIZE:
        for fde, size in enumerate(entries.sizes):
            if size > MAX_FUNCTION_SIZE:
                results[fde] = Why(Reason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
    for fde, why in refused.items():
        results[fde] = Why(Reason.READER, why, 0)
    return results


def pieces_of(entries: CfiEntries, results: Sequence[Lowered], code_map: CodeMap) -> tuple[Piece, ...]:
    """Return the pieces of an image in ascending order: all that FDEs and stubs own, without overlap."""
    pieces: list[Piece] = []
    for start_vaddr, end_vaddr, owner in code_map.owners:
        if owner is None:
            continue
        if isinstance(owner, Function):
            pieces.append(Piece(start_vaddr, end_vaddr, None, owner.body))
            continue
        vaddr, result = entries.starts[owner], results[owner]
        if isinstance(result, FunctionBody):
            # Nearly all results: one call less is a percent of a conversion.
            pieces.append(Piece(start_vaddr, end_vaddr, owner, result.cut(start_vaddr - vaddr, end_vaddr - vaddr)))
            continue
        for start, end, rows in pieces_within(result, start_vaddr - vaddr, end_vaddr - vaddr):
            pieces.append(Piece(vaddr + start, vaddr + end, owner, rows))
    return tuple(pieces)


def fates_of(entries: CfiEntries, pieces: Sequence[Piece], without_code: Mapping[FdeIndex, Fate]) -> tuple[Fate, ...]:
    """Return the fate of each FDE, and of each function derived from instructions.

    `without_code` has those that own no address. An FDE that lacks less than its range is described in part, by its own
    rows or those of other owners; one that reaches past the code is described in part at best.
    """
    fates = [Fate.DESCRIBED] * len(entries)
    lacking = Counter[FdeIndex]()
    for start_vaddr, end_vaddr, origin, rows in pieces:
        if isinstance(rows, Why) and origin is not None:
            lacking[origin] += end_vaddr - start_vaddr
    for fde, size in lacking.items():
        fates[fde] = Fate.LEFT_OUT if size == entries.sizes[fde] else Fate.IN_PARTS
    for clipped in entries.clipped:
        if fates[clipped] is Fate.DESCRIBED:
            fates[clipped] = Fate.IN_PARTS
    for fde, fate in without_code.items():
        fates[fde] = fate
    for derived in entries.sources.get("code", ()):
        is_described = fates[derived] in (Fate.DESCRIBED, Fate.IN_PARTS)
        fates[derived] = Fate.DERIVED if is_described else Fate.NOT_DERIVED
    return tuple(fates)
