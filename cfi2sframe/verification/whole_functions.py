# SPDX-License-Identifier: Apache-2.0
"""Compare an FDE that overlaps no other with the function of its range, and report how they differ.

The function may reach over the padding that follows, where the FDE's last row has to be in force. Pairs of a program
and a row list may occur many times; each distinct pair is compared once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.intern import IdentityMap

if TYPE_CHECKING:
    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.sframe.model import Function, FunctionBody
    from cfi2sframe.verification.comparison import Comparison


class _Result(NamedTuple):
    """The number of addresses compared, and (delta from the function's start, message) of each difference."""

    point_count: int
    problems: tuple[tuple[int, str], ...]


class WholeFunctions:
    """Compares FDEs with functions of the same range, or of that range and padding."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._signs_ra = IdentityMap(_signs_ra)
        #: By row list, then by (number of the program, size of the function).
        self._results = IdentityMap(_no_results)

    def function_of(self, entry: CfiEntry) -> Function | None:
        """Return the first function that starts where an FDE does, if it is a PCINC function of the FDE's range.

        It may reach over padding.
        """
        lookup, begin = self._comparison.lookup, entry.fde.pc_begin_vaddr
        index = bisect_left(lookup.starts, begin)
        if index == len(lookup.starts):
            return None
        function = lookup.function_at(index)
        if function.start_vaddr != begin or function.body.is_pcmask:
            return None
        end = begin + entry.fde.pc_range
        return function if end <= begin + function.size <= self._comparison.end_of_padding(end) else None

    def compare(self, entry: CfiEntry, function: Function) -> None:
        """Compare an FDE with the function that `function_of` returned for it."""
        results = self._results[function.body]
        key = (entry.program.number, function.size)
        result = results.get(key)
        if result is None:
            result = results[key] = self._compare_rows(entry, function)
        comparison = self._comparison
        comparison.point_count += result.point_count
        for delta, message in result.problems:
            comparison.report("wrong", entry.fde.pc_begin_vaddr + delta, message)
        # A key matters only where an RA is signed, and the rows need not be searched for that unless a key is B.
        has_b_key = function.body.uses_b_key or entry.fde.cie.uses_b_key
        comparison.compare_attributes((entry,), function, signs_ra=has_b_key and self._signs_ra[function.body])

    def _compare_rows(self, entry: CfiEntry, function: Function) -> _Result:
        table, size = entry.program.table, function.size
        comparison = self._comparison
        deltas = {*table.starts, *function.body.starts}
        points = sorted(delta for delta in deltas if delta < size)
        problems: list[tuple[int, str]] = []
        for delta in points:
            truth = table.states[bisect_right(table.starts, delta) - 1]
            number = function.number_at(function.start_vaddr + delta, comparison.version)
            problem = comparison.row_difference(truth, None if number is None else function.body.states[number])
            if problem is not None:
                problems.append((delta, problem))
        return _Result(len(points), tuple(problems))


def _signs_ra(rows: FunctionBody) -> bool:
    return any(state.mangled_ra for state in rows.states)


def _no_results(_rows: FunctionBody) -> dict[tuple[int, int], _Result]:
    return {}
