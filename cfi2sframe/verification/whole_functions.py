# SPDX-License-Identifier: Apache-2.0
"""Compare an FDE that overlaps no other with the function of its range: nearly all FDEs of nearly all files.

The function may reach over the padding that follows, where the FDE's last row has to be in force.

Most pairs of a program and a row list occur many times; each distinct pair is compared once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.lookup import row_at
from cfi2sframe.verification.row_edges import COMPARED

if TYPE_CHECKING:
    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.dwarf.rules import RowState, UnwindTable
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedRow
    from cfi2sframe.sframe.model import FrameState
    from cfi2sframe.verification.comparison import Comparison

#: Microseconds of work on an address where two rows are compared.
_POINT_STEPS: Final = 4
#: Bytes of memory of a difference.
_DIFFERENCE_SIZE: Final = 250


class _Result(NamedTuple):
    """The number of addresses compared, and (delta from the function's start, message) of each difference."""

    point_count: int
    problems: tuple[tuple[int, str], ...]


class WholeFunctions:
    """Compares FDEs with functions of the same range, or of that range and padding."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._signs_ra = IdentityMap(_signs_ra)
        #: By the states of a program: for each, whether a state of the section agrees with it.
        self._agreements = IdentityMap(self._agreements_of)
        self._agreement = IdentityMap(self._agreement_with)
        #: By row list, then by (number of the program, size of the function).
        self._results = IdentityMap(_no_results)

    def function_of(self, entry: CfiEntry) -> DecodedFunction | None:
        """Return the first function that starts where an FDE does, if it is a PCINC function of the FDE's range.

        It may reach over padding.
        """
        lookup, begin = self._comparison.lookup, entry.fde.pc_begin_vaddr
        index = bisect_left(lookup.starts, begin)
        if index == len(lookup.starts):
            return None
        function = lookup.functions[index]
        if function.start_vaddr != begin or function.is_pcmask:
            return None
        end = begin + entry.fde.pc_range
        return function if end <= begin + function.size <= self._comparison.end_of_padding(end) else None

    def compare(self, entry: CfiEntry, function: DecodedFunction) -> None:
        """Compare an FDE with the function that `function_of` returned for it."""
        results = self._results[function.rows]
        key = (entry.program.number, function.size)
        result = results.get(key)
        if result is None:
            result = results[key] = self._compare_rows(entry, function)
        comparison = self._comparison
        comparison.point_count += result.point_count
        if result.problems:
            comparison.budget.hold(_DIFFERENCE_SIZE * len(result.problems), "the differences")
        for delta, message in result.problems:
            comparison.report("wrong", entry.fde.pc_begin_vaddr + delta, message)
        # A key matters only where an RA is signed, and the rows need not be searched for that unless a key is B.
        has_b_key = function.uses_b_key or entry.fde.cie.uses_b_key
        comparison.compare_attributes((entry,), function, signs_ra=has_b_key and self._signs_ra[function.rows])

    def _compare_rows(self, entry: CfiEntry, function: DecodedFunction) -> _Result:
        table, size = entry.program.table, function.size
        if self._is_same_throughout(table, function.rows):
            return _Result(len(table.starts), ())
        comparison = self._comparison
        comparison.budget.spend(_POINT_STEPS * (len(table.starts) + len(function.rows)), COMPARED)
        deltas = {*table.starts, *(row.row.start_delta for row in function.rows)}
        points = sorted(delta for delta in deltas if delta < size)
        problems: list[tuple[int, str]] = []
        for delta in points:
            truth = table.states[bisect_right(table.starts, delta) - 1]
            row = row_at(function, function.start_vaddr + delta, comparison.version)
            problem = comparison.row_difference(truth, None if row is None else row.row.state)
            if problem is not None:
                problems.append((delta, problem))
        return _Result(len(points), tuple(problems))

    def _is_same_throughout(self, table: UnwindTable, rows: tuple[DecodedRow, ...]) -> bool:
        """Whether rows of both sides start at the same addresses and agree: cheap to find out, and nearly always so."""
        if len(table.starts) != len(rows):
            return False
        for start, agrees, decoded in zip(table.starts, self._agreements[table.states], rows, strict=True):
            row = decoded.row
            if start != row.start_delta or not agrees[row.state]:
                return False
        return True

    def _agreements_of(self, states: tuple[RowState, ...]) -> list[IdentityMap[FrameState, bool]]:
        return [self._agreement[state] for state in states]

    def _agreement_with(self, truth: RowState) -> IdentityMap[FrameState, bool]:
        return IdentityMap(lambda state: self._comparison.row_difference(truth, state) is None)


def _signs_ra(rows: tuple[DecodedRow, ...]) -> bool:
    return any(row.row.state.mangled_ra for row in rows)


def _no_results(_rows: tuple[DecodedRow, ...]) -> dict[tuple[int, int], _Result]:
    return {}
