# SPDX-License-Identifier: Apache-2.0
"""Functions of a section: the pieces with rows, over the padding after them, none larger than a record can hold."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.conversion.pieces import MAX_FUNCTION_SIZE, Piece
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.why import Why


class Functions(NamedTuple):
    """The functions of a section as columns: addresses, sizes in bytes, rows."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    bodies: tuple[FunctionBody, ...]


def place_functions(
    pieces: Iterable[Piece], padding: Sequence[Span], version: int, *, in_section_order: bool
) -> Functions:
    """Return the functions of a section of a version of SFrame.

    They are in ascending order of their addresses; with `in_section_order`, in the order of the FDEs, as linkers expect
    it of objects (which have no stubs).
    """
    if in_section_order:
        pieces = sorted(pieces, key=attrgetter("origin", "start_vaddr"))
    ends = dict(padding)
    starts: list[int] = []
    sizes: list[int] = []
    bodies: list[FunctionBody] = []
    for start, end, _, rows in pieces:
        if isinstance(rows, Why):
            continue
        size = min(ends.get(end, end) - start, MAX_FUNCTION_SIZE)
        if version >= SFRAME_VERSION_3 and len(rows.starts) > V3_MAX_FRES:
            # More rows than version 3 can count.
            for first, last in pairwise((*rows.starts[::V3_MAX_FRES], size)):
                starts.append(start + first)
                sizes.append(last - first)
                bodies.append(rows.cut(first, last))
            continue
        starts.append(start)
        sizes.append(size)
        bodies.append(rows)
    return Functions(tuple(starts), tuple(sizes), tuple(bodies))
