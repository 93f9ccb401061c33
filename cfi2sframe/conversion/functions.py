# SPDX-License-Identifier: Apache-2.0
"""Functions of a section: the pieces with rows, over the padding after them, none larger than a record can hold."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.conversion.pieces import MAX_FUNCTION_SIZE, Piece
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.why import Why


class Placed(NamedTuple):
    """A function: its address, its bytes, its rows."""

    start_vaddr: int
    size: int
    body: FunctionBody


def place_functions(
    pieces: Iterable[Piece], padding: Sequence[Span], version: int, *, in_section_order: bool
) -> list[Placed]:
    """Return the functions of a section of a version of SFrame.

    They are in ascending order of their addresses; with `in_section_order`, in the order of the FDEs, as linkers expect
    it of objects (which have no stubs).
    """
    if in_section_order:
        pieces = sorted(pieces, key=attrgetter("origin", "start_vaddr"))
    ends = dict(padding)
    functions = [
        Placed(start, min(ends.get(end, end) - start, MAX_FUNCTION_SIZE), rows)
        for start, end, _, rows in pieces
        if not isinstance(rows, Why)
    ]
    if version < SFRAME_VERSION_3 or all(len(each.body.starts) <= V3_MAX_FRES for each in functions):
        return functions
    return [part for each in functions for part in _split(each)]


def _split(function: Placed) -> Iterator[Placed]:
    """Yield a function in parts that have no more rows than version 3 can count."""
    body = function.body
    for first, last in pairwise((*body.starts[::V3_MAX_FRES], function.size)):
        yield Placed(function.start_vaddr + first, last - first, body.cut(first, last))
