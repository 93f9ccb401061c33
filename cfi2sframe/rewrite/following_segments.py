# SPDX-License-Identifier: Apache-2.0
"""The segments that describe single sections and move with them: PT_INTERP, PT_NOTE, PT_GNU_PROPERTY."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import PT_GNU_PROPERTY, PT_INTERP, PT_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.rewrite.gate import LinkedFile

FOLLOWING_TYPES: Final = frozenset({PT_INTERP, PT_NOTE, PT_GNU_PROPERTY})


class FollowingSegments:
    """The segments that move with sections, and the indices of the sections that each of them covers completely."""

    def __init__(self, file: LinkedFile, segments: Iterable[ProgramHeader] | None = None) -> None:
        chosen = file.segments if segments is None else segments
        following = [segment for segment in chosen if segment.type in FOLLOWING_TYPES]
        following.sort(key=lambda segment: segment.file_span)
        ends = [segment.file_span.end for segment in following]
        self._starts = [segment.file_offset for segment in following]
        self._ends = sorted(ends)
        #: For each segment, the highest end of it and of those before it.
        self._reach = list(accumulate(ends, max))
        #: By segment, the indices of its sections; by index, the segments of a section. The gate bounds their number.
        self.sections: dict[ProgramHeader, list[int]] = {}
        self.segments: dict[int, list[ProgramHeader]] = {}
        for segment in following:
            if segment not in self.sections:
                self.sections[segment] = file.indices_within(segment.file_span)
            for index in self.sections[segment]:
                self.segments.setdefault(index, []).append(segment)

    def holds_both(self, start: int, end: int) -> bool:
        """Whether a segment covers all bytes between two file offsets."""
        number = bisect_right(self._starts, start)
        return number > 0 and self._reach[number - 1] >= end

    def touching_count(self, start: int, end: int) -> int:
        """Return how many segments have bytes between two file offsets."""
        return bisect_left(self._starts, end) - bisect_right(self._ends, start)
