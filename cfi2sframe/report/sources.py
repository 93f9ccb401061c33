# SPDX-License-Identifier: Apache-2.0
"""What each source of CFI contributes to a conversion."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.cfi import SOURCE_NAMES

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion


class SourceCounts(NamedTuple):
    """The FDEs of one source by what becomes of them: `fdes` is the sum of the counts up to `damaged`.

    `name` is that of its sections, as linkers give it, and `size` their bytes; "code" counts the functions that were
    derived from instructions, and the bytes of the `.debug_frame` that says the same.
    """

    name: str
    size: int
    fdes: int
    described: int
    in_parts: int
    left_out: int
    replaced: int
    dropped: int
    damaged: int


def count_sources(conversion: Conversion) -> tuple[SourceCounts, ...]:
    """Return the counts of each source that was read, the best one first."""
    cfi, code_map = conversion.cfi, conversion.code_map
    kinds = tuple(dict.fromkeys(section.kind for section in cfi.sections))
    without_code = code_map.dropped.keys() | code_map.replaced
    left_out, partial = conversion.outcomes.skipped - without_code, conversion.outcomes.in_parts - without_code
    counts = []
    for kind, edge in zip(kinds, pairwise((*cfi.entries.source_starts, len(cfi.entries))), strict=True):
        numbers = range(*edge)
        skipped = sum(number in numbers for number in left_out)
        in_parts = sum(number in numbers for number in partial)
        dropped = sum(number in numbers for number in code_map.dropped)
        replaced = sum(number in numbers for number in code_map.replaced)
        damaged = sum(item.section.kind == kind for item in cfi.damaged)
        counts.append(
            SourceCounts(
                SOURCE_NAMES[kind],
                sum(len(section.data) for section in cfi.sections if section.kind == kind),
                len(numbers) + damaged,
                len(numbers) - in_parts - skipped - dropped - replaced,
                in_parts,
                skipped,
                replaced,
                dropped,
                damaged,
            )
        )
    return tuple(counts)
