# SPDX-License-Identifier: Apache-2.0
"""Compare FDEs with the section at every edge of either: FDEs that overlap, or that are left out, cut or split."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from cfi2sframe.verification.overlapping_fdes import MAX_CANDIDATES, Holding, find_holdings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.sframe.model import FrameState, Function
    from cfi2sframe.verification.address_set import AddressSet
    from cfi2sframe.verification.comparison import Comparison


def compare_points(
    comparison: Comparison, entries: Sequence[CfiEntry], begin: int, end: int, ignored: AddressSet
) -> None:
    """Compare FDEs, sorted by start, that together hold `[begin, end)`, except at the addresses in `ignored`."""
    edges = sorted(comparison.edges.between(begin, end))
    # Of each source that speaks, the addresses where no function is; and where none is, though one should be.
    absent: dict[int, list[int]] = {}
    missing: dict[int, list[int]] = {}
    skipped, holes, may_lack_parts = comparison.absence
    for holding in find_holdings(entries, skipped, comparison.rank_of):
        gaps = _compare_holding(comparison, holding, edges, ignored)
        absent.setdefault(holding.source, []).extend(gaps)
        # Where FDEs overlap and SFrame cannot express one of them, the section need not have a function.
        if not holding.may_be_absent:
            missing.setdefault(holding.source, []).extend([pc for pc in gaps if pc not in holes])
    for entry in entries:
        fde, source = entry.fde, comparison.rank_of(entry.number)
        begin, end = fde.pc_begin_vaddr, fde.pc_begin_vaddr + fde.pc_range
        may_be_absent = entry.number in may_lack_parts and comparison.lacks(begin, end)
        is_skipped = entry.number in skipped or holes.meets(begin, end)
        if not may_be_absent and _has_any(missing.get(source, ()), begin, end):
            comparison.report("missing", begin, "no SFrame FDE, though this version can express it")
        elif is_skipped and _has_any(absent.get(source, ()), begin, end):
            comparison.left_out_count += 1


def compare_padding(
    comparison: Comparison, entries: Sequence[CfiEntry], begin: int, fde_end: int, ignored: AddressSet
) -> None:
    """Compare what the section says from `begin` on to the end of the padding that follows FDEs.

    The FDEs are sorted by start; the last row of one that ends at `fde_end` has to be in force, or none. Of those that
    end there, the ones of the best source count.
    """
    last = [entry for entry in reversed(entries) if entry.fde.pc_begin_vaddr + entry.fde.pc_range == fde_end]
    source = min((comparison.rank_of(entry.number) for entry in last), default=0)
    last = [entry for entry in last if comparison.rank_of(entry.number) == source]
    end = comparison.end_of_padding(fde_end)
    edges = sorted(comparison.edges.between(begin, end))
    holding = Holding(begin, end, tuple(last[:MAX_CANDIDATES]), may_be_absent=True, source=source)
    _compare_holding(comparison, holding, edges, ignored)


def _compare_holding(comparison: Comparison, holding: Holding, edges: Sequence[int], ignored: AddressSet) -> list[int]:
    """Compare the section with FDEs at the addresses that all of them hold.

    Returns the compared addresses that no function of the section holds.
    """
    begin, end, entries = holding.start_vaddr, holding.end_vaddr, holding.entries
    points = {begin, *edges[bisect_right(edges, begin) : bisect_left(edges, end)]}
    for entry in entries if comparison.edges.has_blocks else entries[:1]:
        points.update(_row_starts_in(entry, begin, end))
    points |= comparison.edges.in_blocks(points, end)
    absent: list[int] = []
    # By start, the functions found, and whether one of their rows here has a signed RA.
    found_functions: dict[int, tuple[Function, bool]] = {}
    for pc, next_pc in pairwise((*sorted(points), end)):
        if pc in ignored:
            continue
        comparison.point_count += 1
        found = comparison.lookup.find(pc)
        if found is None:
            absent.append(pc)
            continue
        state = None if found.row is None else found.row.state
        function, signs_ra = found_functions.get(found.function.start_vaddr, (found.function, False))
        found_functions[function.start_vaddr] = function, signs_ra or (state is not None and state.mangled_ra)
        _compare_state(comparison, entries, state, pc, next_pc)
    for function, signs_ra in found_functions.values():
        comparison.compare_attributes(entries, function, signs_ra=signs_ra)
    return absent


def _compare_state(
    comparison: Comparison, entries: Sequence[CfiEntry], state: FrameState | None, pc: int, end: int
) -> None:
    """Compare the section's state for `[pc, end)` with FDEs. The first of them has one row there, others may have more.

    The state is wrong where no FDE agrees: of several FDEs over one address, any may be the truth.
    """
    while pc < end:
        problems: list[str] = []
        for entry in entries:
            problem = comparison.row_difference(_state_in_force(entry, pc), state)
            if problem is None:
                break
            problems.append(problem)
        else:
            for problem in problems:
                comparison.report("wrong", pc, problem)
            return
        if entry is entries[0]:
            return
        pc = next(_row_starts_in(entry, pc, end), end)


def _has_any(points: Sequence[int], begin: int, end: int) -> bool:
    """Whether one of ascending points lies in `[begin, end)`."""
    index = bisect_left(points, begin)
    return index < len(points) and points[index] < end


def _row_starts_in(entry: CfiEntry, after: int, end: int) -> Iterator[int]:
    """Yield the addresses after `after` and before `end` where rows of an FDE start."""
    begin, starts = entry.fde.pc_begin_vaddr, entry.program.table.starts
    for index in range(bisect_right(starts, after - begin), len(starts)):
        if begin + starts[index] >= end:
            return
        yield begin + starts[index]


def _state_in_force(entry: CfiEntry, pc: int) -> RowState:
    table = entry.program.table
    return table.states[bisect_right(table.starts, pc - entry.fde.pc_begin_vaddr) - 1]
