# SPDX-License-Identifier: Apache-2.0
"""Find the FDEs that a section agrees with, by columns: nearly all FDEs of nearly all files, at every level.

Joined and cut as they may be, functions have the rows of a part of the `TruthColumn`, at the same addresses. Each
function is compared with its part by two comparisons of tuples; pairs of states are compared once each.

This only agrees, and counts the compared addresses. Whatever else there is (differences, overlaps, blocks that repeat,
stubs) is left to `whole_functions` and `point_by_point`, which compare address by address and say what is wrong. A test
holds both ways to the same result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import gt, le
from typing import TYPE_CHECKING, Final

from cfi2sframe.verification.row_difference import attribute_difference
from cfi2sframe.verification.truth_column import Numbering, truth_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.sframe.model import FrameState, FunctionBody
    from cfi2sframe.verification.comparison import Comparison

#: A function that does not agree, or about which nothing is known.
_UNKNOWN: Final = 0
#: A function that agrees and starts where a row of the truth starts, or in the middle of one.
_AT_ROW: Final = 1
_IN_ROW: Final = 2

#: Rows of the truth in a file of any size, and for each of its bytes: FDEs may share a program of many rows.
_BASE_ROWS: Final = 200_000


class Agreement:
    """Which of the FDEs `fdes` agree with the section.

    The FDEs, given by their numbers, are sorted by start and overlap no other FDE and no stub.
    """

    def __init__(self, comparison: Comparison, entries: CfiEntries, fdes: Sequence[int]) -> None:
        self._comparison = comparison
        self._entries = entries
        self._row_counts = [len(program.table.starts) for program in entries.programs]
        lookup = comparison.lookup
        self._starts, self._ends = lookup.starts, lookup.ends
        self._truths: Numbering[DwarfCie, RowState] = Numbering()
        self._states: Numbering[FunctionBody, FrameState] = Numbering()
        self._agreeing: set[tuple[int, int]] = set()
        # No function is empty, and none overlaps another.
        self.is_possible: Final = all(map(gt, self._ends, self._starts)) and all(map(le, self._ends, self._starts[1:]))
        #: For each function, in the order of starts.
        self._verdicts = self._compare_functions(fdes) if self.is_possible else []

    def _compare_functions(self, fdes: Sequence[int]) -> list[int]:
        """Compare each function with its part of the truth."""
        comparison, lookup = self._comparison, self._comparison.lookup
        truth = truth_column(self._entries, fdes, comparison.end_of_padding, self._truths)
        addresses, numbers = truth
        # A function's first row applies from its start on, wherever the truth's row starts.
        row_starts = [_later_starts(body) for body in lookup.bodies]
        row_numbers = [
            self._states.of(body, (body.is_signal_frame, body.uses_b_key), body.states) for body in lookup.bodies
        ]
        #: Numbers of bodies with the states that they agree with.
        known: set[tuple[int, tuple[int, ...]]] = set()
        verdicts: list[int] = []
        row = 0
        for start, end, body in zip(lookup.starts, lookup.ends, lookup.body_numbers, strict=True):
            first = row
            while first < len(addresses) and addresses[first] <= start:
                first += 1
            expected = row_starts[body]
            # One row more than the function has is enough to tell them apart.
            row = bisect_left(addresses, end, first, min(len(addresses), first + len(expected or ()) + 1))
            verdict = _UNKNOWN
            # The truth begins at address 0.
            if expected == tuple([address - start for address in addresses[first:row]]):
                part = (body, tuple(numbers[first - 1 : row]))
                if part in known or self._do_agree(part[1], row_numbers[body]):
                    known.add(part)
                    verdict = _AT_ROW if addresses[first - 1] == start else _IN_ROW
            verdicts.append(verdict)
        return verdicts

    def _do_agree(self, truths: tuple[int, ...], states: tuple[int, ...]) -> bool:
        pairs = set(zip(truths, states, strict=True))
        return all(map(self._does_agree, pairs - self._agreeing))

    def _does_agree(self, numbers: tuple[int, int]) -> bool:
        truth_pair, state_pair = self._truths.pairs[numbers[0]], self._states.pairs[numbers[1]]
        if truth_pair is None or state_pair is None:
            return False
        (cie, truth), (body, state) = truth_pair, state_pair
        comparison = self._comparison
        if comparison.row_difference(truth, state) is not None:
            return False
        # A key matters only where the RA is signed.
        signs_ra = state.mangled_ra
        if attribute_difference(cie, body, comparison.version, signs_ra=signs_ra) is not None:
            return False
        self._agreeing.add(numbers)
        return True

    def count(self, fde: int) -> bool:
        """Return whether an FDE of `fdes` agrees, with the padding after it; if so, count the compared addresses.

        False where that is not certain.
        """
        comparison, entries, starts, ends = self._comparison, self._entries, self._starts, self._ends
        begin = entries.starts[fde]
        end = begin + entries.sizes[fde]
        padding_end = comparison.end_of_padding(end)
        row_count = self._row_counts[entries.program_numbers[fde]]
        place = bisect_right(ends, begin)
        if place == len(starts) or starts[place] >= padding_end:
            # No function holds any of it.
            if fde not in comparison.absence.skipped:
                return False
            comparison.left_out_count += 1
            comparison.point_count += row_count + (end < padding_end)
            return True
        if starts[place] > begin or not self._verdicts[place]:
            return False
        # The addresses where rows of the FDE start, and those where functions do.
        point_count = row_count
        position = ends[place]
        is_whole = starts[place] == begin and end <= position <= padding_end
        while position < end:
            place += 1
            if place == len(starts) or starts[place] != position or not self._verdicts[place]:
                return False
            point_count += self._verdicts[place] == _IN_ROW
            position = ends[place]
        padding_start = position if is_whole else end
        if padding_start < padding_end:
            padding_count = self._count_padding(place, padding_start, padding_end)
            if padding_count is None:
                return False
            point_count += padding_count
        comparison.point_count += point_count
        return True

    def _count_padding(self, place: int, begin: int, end: int) -> int | None:
        """Return the number of addresses in padding where functions start or end, and `begin`; None as above.

        The function at `place` is the last one that starts before `begin`. There may be gaps between functions.
        """
        starts, ends = self._starts, self._ends
        points = {begin, ends[place]}
        while ends[place] < end and place + 1 < len(starts) and starts[place + 1] < end:
            place += 1
            if not self._verdicts[place]:
                return None
            points |= {starts[place], ends[place]}
        return sum(begin <= point < end for point in points)


def _later_starts(body: FunctionBody) -> tuple[int, ...] | None:
    """Return the starts of a body's rows after the first one; None for blocks that repeat and for late rows."""
    starts = body.starts
    return None if body.is_pcmask or not starts or starts[0] else starts[1:]
