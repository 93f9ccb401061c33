# SPDX-License-Identifier: Apache-2.0
"""The account of functions that are described in part: their holes, with the reasons and the cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.lower import Hole
from cfi2sframe.overlaps import Pieces

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.reasons import SkipReason


class HoleInPart(NamedTuple):
    """A range of a function that the SFrame version cannot express: `row_count` rows of the DWARF table.

    `address` is absolute; in an object, it is an offset in the function's section. `size` counts bytes; `detail` is
    the rule in question.
    """

    address: int
    size: int
    row_count: int
    reason: SkipReason
    detail: str


class InPart(NamedTuple):
    """A function that is described except for its holes. `demangled` is its name in readable form.

    `address` is absolute; in an object, it is an offset in `section`. `size` counts bytes.
    """

    name: str
    demangled: str
    section: str
    address: int
    size: int
    holes: tuple[HoleInPart, ...]


class HoleCounts(NamedTuple):
    """Holes of one reason: their number, their bytes, and the rows of the DWARF table that begin in them.

    What belongs to another FDE or to stubs is not counted, nor are functions from instructions.
    """

    holes: int = 0
    bytes: int = 0
    rows: int = 0


def functions_in_parts(conversion: Conversion) -> tuple[InPart, ...]:
    """Return the functions that are described in part, in the order of the FDEs."""
    image, in_parts = conversion.image, conversion.in_parts
    names = image.names_of(entry.fde.pc_begin_vaddr for entry, _ in in_parts)
    result = []
    for entry, parts in in_parts:
        fde = entry.fde
        size = fde.pc_range + conversion.cfi.entries.clipped.get(entry.number, 0)
        place = image.place(fde.pc_begin_vaddr)
        holes = tuple(
            HoleInPart(place.offset + start, end - start, which.row_count, which.why.reason, which.why.detail)
            for start, end, which in parts.within(0, size)
            if isinstance(which, Hole)
        )
        name = names.get(fde.pc_begin_vaddr, "")
        result.append(InPart(name, "", place.section_name, place.offset, size, holes))
    return tuple(result)


def count_holes(conversion: Conversion) -> dict[str, HoleCounts]:
    """Count holes by reason, as sentences in alphabetical order."""
    counts: dict[str, HoleCounts] = {}
    pieces, derived = conversion.code_map.pieces, conversion.cfi.derived_numbers
    if derived:
        pieces = Pieces.of([piece for piece in pieces.records if piece.number not in derived])
    for start, end, hole, is_first in conversion.outcomes.holes(conversion.cfi.entries, pieces):
        reason = hole.why.reason.value
        holes, size, rows = counts.get(reason, HoleCounts())
        counts[reason] = HoleCounts(holes + is_first, size + end - start, rows + is_first * hole.row_count)
    return dict(sorted(counts.items()))
