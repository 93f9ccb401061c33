# SPDX-License-Identifier: Apache-2.0
"""Which executable segments hold some functions: Linux registers an SFrame section for each of them by itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import PF_X, PT_LOAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.elf.headers import ProgramHeader


class Spread(NamedTuple):
    """How the functions of a section are spread over the executable PT_LOAD segments of its file.

    `segment_count` counts these segments, `holder_count` those that hold a function or the start of one.
    `is_in_one`: one of them holds all functions, from the first byte to the last. `has_outsider`: a function is in
    none of them, or reaches past its end.
    """

    segment_count: int
    holder_count: int
    is_in_one: bool
    has_outsider: bool


def spread_of(segments: Iterable[ProgramHeader], starts: Sequence[int], sizes: Sequence[int]) -> Spread:
    """Return how functions, of the virtual addresses `starts` and of `sizes` bytes, are spread over `segments`."""
    loads = [segment for segment in segments if segment.type == PT_LOAD and segment.flags & PF_X]
    ordered = sorted(starts)
    last_end = max(map(add, starts, sizes), default=0)
    counts = [bisect_left(ordered, load.end_vaddr) - bisect_left(ordered, load.vaddr) for load in loads]
    is_in_one = any(
        number == len(ordered) and last_end <= load.end_vaddr for load, number in zip(loads, counts, strict=True)
    )
    has_outsider = not is_in_one and _has_outsider(loads, starts, sizes)
    return Spread(len(loads), sum(map(bool, counts)), is_in_one, has_outsider)


def _has_outsider(loads: Iterable[ProgramHeader], starts: Sequence[int], sizes: Sequence[int]) -> bool:
    ordered = sorted(loads, key=lambda load: load.vaddr)
    load_starts = [load.vaddr for load in ordered]
    for start, size in zip(starts, sizes, strict=True):
        index = bisect_right(load_starts, start) - 1
        if index < 0 or start + size > ordered[index].end_vaddr:
            return True
    return False


def before_the_code(segments: Sequence[ProgramHeader], starts: Sequence[int]) -> ProgramHeader | None:
    """Return a program header with PF_X, no PT_LOAD, that overlaps the segment of the functions and precedes it.

    Linux takes it for an executable segment. Where sections are not validated, the section is registered for it, and
    then not for the segment, because ranges must not overlap. None without any.
    """
    first = min(starts, default=0)
    found: list[ProgramHeader] = []
    for segment in segments:
        if not segment.flags & PF_X:
            continue
        if segment.type != PT_LOAD:
            found.append(segment)
        elif segment.vaddr <= first < segment.end_vaddr:
            return next((s for s in found if s.vaddr < segment.end_vaddr and s.end_vaddr > segment.vaddr), None)
    return None
