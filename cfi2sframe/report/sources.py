# SPDX-License-Identifier: Apache-2.0
"""What each source of CFI contributes to a conversion, and where a source contradicts a better one."""

from __future__ import annotations

from bisect import bisect_right
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.elf.cfi import SOURCE_NAMES
from cfi2sframe.overlaps import Pieces
from cfi2sframe.reasons import DropReason
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RegisterRule, RowState

#: What the work is called where an input is refused for it.
_COMPARED: Final = "the rows that two sources have for the same code"
#: FDEs that describe no code contradict nothing.
_WITHOUT_CODE: Final = (DropReason.DISCARDED, DropReason.EMPTY)


class SourceCounts(NamedTuple):
    """The FDEs of one source by what becomes of them: `fdes` is the sum of the counts up to `damaged`.

    `name` is that of its sections, as linkers give it, and `size` their bytes; "code" counts the functions that were
    derived from instructions, and no bytes. `contradicting` counts the FDEs
    whose rows, at some address that a better source holds, differ from those in force there: in the CFA, the RA, or the
    FP where both have a rule for it.
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
    contradicting: int


def count_sources(conversion: Conversion) -> tuple[SourceCounts, ...]:
    """Return the counts of each source that was read, the best one first.

    Raises `BudgetError` when the rows to compare are out of proportion to the file.
    """
    cfi, code_map = conversion.cfi, conversion.code_map
    kinds = tuple(dict.fromkeys(section.kind for section in cfi.sections))
    without_code = code_map.dropped.keys() | code_map.replaced
    left_out, partial = conversion.outcomes.skipped - without_code, conversion.outcomes.in_parts - without_code
    counts = []
    for rank, (kind, edge) in enumerate(
        zip(kinds, pairwise((*cfi.entries.source_starts, len(cfi.entries))), strict=True)
    ):
        numbers = range(*edge)
        skipped = sum(number in numbers for number in left_out)
        in_parts = sum(number in numbers for number in partial)
        dropped = sum(number in numbers for number in code_map.dropped)
        replaced = sum(number in numbers for number in code_map.replaced)
        damaged = sum(item.section.kind == kind for item in cfi.damaged)
        counts.append(
            SourceCounts(
                SOURCE_NAMES[kind],
                sum(section.size for section in cfi.sections if section.kind == kind),
                len(numbers) + damaged,
                len(numbers) - in_parts - skipped - dropped - replaced,
                in_parts,
                skipped,
                replaced,
                dropped,
                damaged,
                _Contradictions(conversion, numbers).count() if rank else 0,
            )
        )
    return tuple(counts)


class _Contradictions:
    """Compares the FDEs of a source with those of better sources at the addresses that these hold."""

    def __init__(self, conversion: Conversion, numbers: range) -> None:
        self.arch = conversion.image.arch
        self.budget = conversion.image.budget
        self.entries: CfiEntries = conversion.cfi.entries
        dropped = conversion.code_map.dropped
        self.numbers = [number for number in numbers if dropped.get(number) not in _WITHOUT_CODE]
        pieces = conversion.code_map.pieces
        is_better = [number < numbers.start for number in pieces.numbers]
        self.better = Pieces(*(tuple(compress(column, is_better)) for column in pieces))
        #: By the numbers of two programs, the distance of their starts, and the range compared.
        self._known: dict[tuple[int, int, int, int, int], bool] = {}
        self._pairs: dict[tuple[RowState, RowState], bool] = {}

    def count(self) -> int:
        """Return how many of the FDEs contradict a better source."""
        return sum(map(self._contradicts, self.numbers))

    def _contradicts(self, number: int) -> bool:
        numbers, starts, ends = self.better
        begin = self.entries.starts[number]
        end = begin + self.entries.sizes[number]
        place = bisect_right(ends, begin)
        while place < len(starts) and starts[place] < end:
            self.budget.spend(1, _COMPARED)
            if self._differs(numbers[place], number, max(begin, starts[place]), min(end, ends[place])):
                return True
            place += 1
        return False

    def _differs(self, better: int, number: int, begin: int, end: int) -> bool:
        """Whether the rows of two FDEs differ at an address of `[begin, end)`, which both hold."""
        starts, programs = self.entries.starts, self.entries.program_numbers
        first, second = starts[better], starts[number]
        key = (programs[better], programs[number], second - first, begin - first, end - first)
        if key not in self._known:
            self._known[key] = any(map(self._pair_differs, self._pairs_between(better, number, begin, end)))
        return self._known[key]

    def _pairs_between(self, better: int, number: int, begin: int, end: int) -> Iterator[tuple[RowState, RowState]]:
        """Yield the states of two FDEs wherever either changes in `[begin, end)`."""
        columns = []
        for fde in (better, number):
            table = self.entries.programs[self.entries.program_numbers[fde]].table
            columns.append((table, self.entries.starts[fde]))
        points = {begin}
        for table, start in columns:
            points.update(start + delta for delta in table.starts if begin < start + delta < end)
            self.budget.spend(len(table.starts), _COMPARED)
        (first, first_start), (second, second_start) = columns
        for pc in sorted(points):
            yield (
                first.states[bisect_right(first.starts, pc - first_start) - 1],
                second.states[bisect_right(second.starts, pc - second_start) - 1],
            )

    def _pair_differs(self, pair: tuple[RowState, RowState]) -> bool:
        if pair[0] is pair[1]:
            return False
        if pair not in self._pairs:
            self._pairs[pair] = _states_differ(_normal(pair[0], self.arch), _normal(pair[1], self.arch))
        return self._pairs[pair]


def _states_differ(first: RowState, second: RowState) -> bool:
    if None in (first.cfa, second.cfa) or (first.ra is NoRule.UNDEFINED and second.ra is NoRule.UNDEFINED):
        return False
    have_fp = NoRule.UNSPECIFIED not in (first.fp, second.fp)
    return (first.cfa, first.ra, first.signing) != (second.cfa, second.ra, second.signing) or (
        have_fp and first.fp != second.fp
    )


def _normal(state: RowState, arch: Arch) -> RowState:
    """Return an equal state whose CFA is where the ABI has it, and that has no rule for an RA in its own register.

    A producer may count from elsewhere: Go takes the caller's SP for the CFA, where s390x has 160 bytes more.
    """
    ra = state.ra
    if ra in (NoRule.SAME_VALUE, Rule(arch.ra_register, 0, deref=False)):
        ra = NoRule.UNSPECIFIED
    cfa, fp, sp = state.cfa, state.fp, state.sp
    if isinstance(sp, Rule) and sp.register is None and not sp.deref and isinstance(cfa, Rule):
        shift = sp.offset - arch.sp_offset_from_cfa
        cfa = cfa._replace(offset=cfa.offset + shift)
        ra, fp = _moved(ra, shift), _moved(fp, shift)
    return state._replace(cfa=cfa, ra=ra, fp=fp, sp=NoRule.UNSPECIFIED)


def _moved(rule: RegisterRule, shift: int) -> RegisterRule:
    if isinstance(rule, Rule) and rule.register is None:
        return rule._replace(offset=rule.offset - shift)
    return rule
