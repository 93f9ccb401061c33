# SPDX-License-Identifier: Apache-2.0
"""The rows of an image's FDEs as one column of addresses, as a section of ideal functions would have them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from cfi2sframe.intern import IdentityMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import CfiEntries, Program
    from cfi2sframe.dwarf.rules import RowState

#: The number of the state where nothing is known.
NOTHING: Final = 0
S = TypeVar("S")
A = TypeVar("A")


class Numbering(Generic[A, S]):
    """Numbers, from 1 on, for pairs of a state and what applies to all rows of its function.

    Equal pairs have one number where the states are one object.
    """

    def __init__(self) -> None:
        #: The pairs, by their numbers; the first one is no pair.
        self.pairs: list[tuple[A, S] | None] = [None]
        self._lists: dict[object, IdentityMap[tuple[S, ...], tuple[int, ...]]] = {}

    def of(self, owner: A, kind: object, states: tuple[S, ...]) -> tuple[int, ...]:
        """Return the numbers of states whose function is of a `kind`; `owner` is any that is of this kind."""
        lists = self._lists.get(kind)
        if lists is None:
            lists = self._lists[kind] = self._new_lists(owner)
        return lists[states]

    def _new_lists(self, owner: A) -> IdentityMap[tuple[S, ...], tuple[int, ...]]:
        def number(state: S) -> int:
            self.pairs.append((owner, state))
            return len(self.pairs) - 1

        numbers = IdentityMap(number)
        return IdentityMap(lambda states: tuple([numbers[state] for state in states]))


class TruthColumn(NamedTuple):
    """From the virtual address `addresses[N]` on, up to the next one, the state of `numbers[N]` has to be in force.

    Addresses ascend from 0 on. The last row of an FDE also applies to the padding after it. No state equals the one
    before it, so an FDE may begin in the middle of a row.
    """

    addresses: array[int]
    numbers: list[int]


def truth_column(
    entries: CfiEntries,
    fdes: Iterable[int],
    end_of_padding: Callable[[int], int],
    numbering: Numbering[DwarfCie, RowState],
) -> TruthColumn:
    """Return the rows of FDEs, given by their numbers; they may not overlap, and have to be sorted by start."""
    program_starts = [program.table.starts for program in entries.programs]
    program_numbers = [_numbers_of(program, numbering) for program in entries.programs]
    addresses: array[int] = array("Q")
    numbers: list[int] = []
    last_end, last_number = 0, NOTHING
    for fde in fdes:
        begin, program = entries.starts[fde], entries.program_numbers[fde]
        if begin > last_end:
            addresses.append(last_end)
            numbers.append(NOTHING)
            last_number = NOTHING
        row_starts, row_numbers = program_starts[program], program_numbers[program]
        if row_numbers[0] == last_number:
            row_starts, row_numbers = row_starts[1:], row_numbers[1:]
        addresses.extend([begin + start for start in row_starts])
        numbers.extend(row_numbers)
        last_number = program_numbers[program][-1]
        last_end = end_of_padding(begin + entries.sizes[fde])
    addresses.append(last_end)
    numbers.append(NOTHING)
    return TruthColumn(addresses, numbers)


def _numbers_of(program: Program, numbering: Numbering[DwarfCie, RowState]) -> tuple[int, ...]:
    cie = program.cie
    return numbering.of(cie, (cie.ra_register, cie.is_signal_frame, cie.uses_b_key), program.table.states)
