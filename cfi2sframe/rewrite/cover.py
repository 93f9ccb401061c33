# SPDX-License-Identifier: Apache-2.0
"""Which segments lead to which sections by their place in the file: PT_INTERP, PT_NOTE and PT_GNU_PROPERTY."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import PT_GNU_PROPERTY, PT_INTERP, PT_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.records import ProgramHeader
    from cfi2sframe.rewrite.gate import Layout

FOLLOWING_TYPES: Final = frozenset({PT_INTERP, PT_NOTE, PT_GNU_PROPERTY})


class Cover:
    """The segments that follow sections, and the sections that each of them covers as a whole, by index."""

    def __init__(self, layout: Layout, segments: Iterable[ProgramHeader] | None = None) -> None:
        chosen = layout.segments if segments is None else segments
        following = [(s.file_offset, s.file_offset + s.file_size, s) for s in chosen if s.type in FOLLOWING_TYPES]
        following.sort(key=lambda item: item[:2])
        self._starts = [start for start, _, _ in following]
        self._ends = sorted(end for _, end, _ in following)
        self._reach = list(accumulate((end for _, end, _ in following), max))
        #: By segment, the indices of its sections; by index, the segments of a section. `Layout` bounds their number.
        self.sections: dict[ProgramHeader, list[int]] = {}
        self.segments: dict[int, list[ProgramHeader]] = {}
        for start, end, segment in following:
            if segment not in self.sections:
                self.sections[segment] = layout.indices_within(start, end)
            for index in self.sections[segment]:
                self.segments.setdefault(index, []).append(segment)

    def holds_both(self, start: int, end: int) -> bool:
        """Say whether one segment covers a whole range of the file."""
        number = bisect_right(self._starts, start)
        return number > 0 and self._reach[number - 1] >= end

    def touching_count(self, start: int, end: int) -> int:
        """Return how many segments have bytes of a range of the file."""
        return bisect_left(self._starts, end) - bisect_right(self._ends, start)
