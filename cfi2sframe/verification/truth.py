# SPDX-License-Identifier: Apache-2.0
"""What has to be in force at each address of a file: by its FDEs and, where they are, by the instructions of its stubs.

DWARF's rows are read here and nowhere else in verification.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from itertools import compress, count, pairwise
from operator import eq
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from cfi2sframe.elf.ranges import without
from cfi2sframe.intern import IdentityMap

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence

    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.stub_records import StubScan
    from cfi2sframe.padding import Padding
    from cfi2sframe.sframe.model import FrameState

S = TypeVar("S")
T = TypeVar("T")
#: Past the last address.
ADDRESS_END: Final = 1 << 64
#: Numbers of claims: no function may be here; whatever is here is right.
NOTHING: Final = 0
ANYTHING: Final = 1
#: A row is compared with at most so many FDEs of its address. Linkers produce two or three; a hostile file may have
#: thousands, and comparing all of them at each of their edges would be quadratic.
MAX_CANDIDATES: Final = 16


class Truth(NamedTuple):
    """What a section is compared with: FDEs, and stubs.

    `skipped` are the numbers of the FDEs that the section's version cannot express. `holes` are the virtual addresses
    `[start, end)` that it cannot express of others; FDEs in `may_lack_parts` may be absent altogether for that. A
    function may reach over the `padding` that follows its FDE, with its last row in force; it need not.
    """

    entries: CfiEntries
    skipped: Container[int]
    holes: Sequence[tuple[int, int]]
    may_lack_parts: Container[int]
    stubs: StubScan
    padding: Padding


class Fdes(NamedTuple):
    """The FDEs that describe code, sorted by start, as columns: numbers, and the addresses `[starts[N], ends[N])`."""

    numbers: list[int]
    starts: list[int]
    ends: list[int]

    def clusters(self) -> Iterator[tuple[int, int, int]]:
        """Yield runs of overlapping FDEs: the places `[first, last)`, and the end of the addresses that they hold."""
        starts, ends = self.starts, self.ends
        first = 0
        while first < len(starts):
            end, last = ends[first], first + 1
            while last < len(starts) and starts[last] < end:
                end = max(end, ends[last])
                last += 1
            yield first, last, end
            first = last


def fdes_with_code(entries: CfiEntries, image: ElfImage) -> Fdes:
    """Return the FDEs that describe code, without those whose code is all described by better sources."""
    best, *others = (_fdes_of(group, entries, image) for group in entries.precedence)
    for other in others:
        held = list(zip(best.starts, best.ends, strict=True))
        added = [fde for fde in zip(other.starts, other.numbers, other.ends, strict=True) if without([fde[::2]], held)]
        both = sorted([*zip(best.starts, best.numbers, best.ends, strict=True), *added])
        best = Fdes([fde[1] for fde in both], [fde[0] for fde in both], [fde[2] for fde in both])
    return best


def _fdes_of(source: Sequence[int], entries: CfiEntries, image: ElfImage) -> Fdes:
    """Return the FDEs of a source that describe code."""
    numbers = sorted(source, key=entries.starts.__getitem__)
    starts = [entries.starts[number] for number in numbers]
    ends = [start + entries.sizes[number] for start, number in zip(starts, numbers, strict=True)]
    denied = {*image.not_code(starts, ends), *compress(count(), map(eq, starts, ends))}
    if denied:
        kept = [place for place in range(len(numbers)) if place not in denied]
        numbers, starts, ends = ([column[place] for place in kept] for column in (numbers, starts, ends))
    return Fdes(numbers, starts, ends)


class AddressColumn(Generic[T]):
    """What holds from each of ascending addresses on up to the next one: `answers[numbers[N]]` from `addresses[N]` on.

    The first of the answers holds where nothing else was put. Ranges are put in ascending order, then it is closed.
    """

    def __init__(self, *answers: T) -> None:
        self.addresses: list[int] = []
        self.numbers: list[int] = []
        self.answers = list(answers)
        self._kinds: dict[Hashable, IdentityMap[Any, list[int]]] = {}
        #: The end of the last range.
        self.end = 0

    def number(self, answer: T) -> int:
        """Add an answer, and return its number."""
        self.answers.append(answer)
        return len(self.answers) - 1

    def numbers_of(self, kind: Hashable, rows: tuple[S, ...], answer_of: Callable[[S], T]) -> list[int]:
        """Return the number of the answer for each of some rows. Equal rows of a kind have one: they are one object."""
        if kind not in self._kinds:
            numbers = IdentityMap["S", int](lambda row: self.number(answer_of(row)))
            self._kinds[kind] = IdentityMap(lambda rows: [numbers[row] for row in rows])
        return self._kinds[kind][rows]

    def put_rows(self, start: int, end: int, row_starts: Sequence[int], numbers: Sequence[int]) -> None:
        """Put the answers of rows, which count from `start`; those past the end never hold."""
        if row_starts[-1] >= end - start:
            row_count = bisect_left(row_starts, end - start)
            row_starts, numbers = row_starts[:row_count], numbers[:row_count]
        self.put([start + delta for delta in row_starts], numbers, end)

    def put(self, addresses: Sequence[int], numbers: Sequence[int], end: int) -> None:
        """Put answers from some addresses on, the last one up to `end`."""
        if self.end != addresses[0]:
            self.addresses.append(self.end)
            self.numbers.append(0)
        self.addresses += addresses
        self.numbers += numbers
        self.end = end

    def put_next(self, number: int, end: int) -> None:
        """Put an answer from the last range's end on."""
        self.addresses.append(self.end)
        self.numbers.append(number)
        self.end = end

    def closed(self) -> AddressColumn[T]:
        """Return the column with nothing after its last range."""
        self.put_next(0, ADDRESS_END)
        return self

    def replaced(self, ranges: Iterable[tuple[int, int, Sequence[tuple[int, int]]]]) -> AddressColumn[T]:
        """Return the column with other answers in disjoint, ascending ranges [start, end), from the places given on."""
        made = AddressColumn(*self.answers)
        done = 0
        for start, end, points in ranges:
            first = bisect_left(self.addresses, start, done)
            last = bisect_left(self.addresses, end, first)
            made.addresses += self.addresses[done:first]
            made.numbers += self.numbers[done:first]
            made.addresses += [address for address, _ in points]
            made.numbers += [number for _, number in points]
            if last == len(self.addresses) or self.addresses[last] != end:
                made.addresses.append(end)
                made.numbers.append(self.numbers[last - 1])
            done = last
        made.addresses += self.addresses[done:]
        made.numbers += self.numbers[done:]
        return made

    def number_at(self, address: int) -> int:
        """Return the number of the answer that holds at an address."""
        return self.numbers[bisect_right(self.addresses, address) - 1]


class Overlap(NamedTuple):
    """What is known where FDEs overlap: the start of the one that unwinders find, and its source's rank.

    `may_be_absent`: SFrame cannot express one of the FDEs of that source.
    """

    begin_vaddr: int
    rank: int
    may_be_absent: bool


class Claim(NamedTuple):
    """What has to be in force: one of `rows`, each with the CIE of its FDE, or, of a stub, `state`.

    `is_padding`: or no function at all.
    """

    rows: tuple[tuple[DwarfCie, RowState], ...] = ()
    state: FrameState | None = None
    is_padding: bool = False
    overlap: Overlap | None = None


def truth_column(truth: Truth, fdes: Fdes, ends: Mapping[int, int]) -> AddressColumn[Claim]:
    """Return what FDEs claim. `ends` has the end of the section's function that starts at an address."""
    padding_sizes = truth.padding.sizes
    column = AddressColumn(Claim(), Claim())
    programs = [(table.starts, _claims_of(cie, table.states, column)) for _, cie, table in truth.entries.programs]
    in_padding: dict[int, int] = {}
    program_numbers, next_starts = truth.entries.program_numbers, [*fdes.starts[1:], ADDRESS_END]
    for first, last, end in fdes.clusters():
        start = fdes.starts[first]
        if last == first + 1:
            column.put_rows(start, end, *programs[program_numbers[fdes.numbers[first]]])
            after = column.numbers[-1]
        else:
            after = _put_overlapping(column, truth, fdes.numbers[first:last])
        if end in padding_sizes:
            reach = min(end + padding_sizes[end], next_starts[last - 1])
            if last == first + 1 and end < ends.get(start, 0) <= reach:
                # Where a function of its own reaches over padding, no row begins there.
                column.end = ends[start]
            if column.end < reach:
                if after not in in_padding:
                    in_padding[after] = column.number(column.answers[after]._replace(is_padding=True))
                column.put_next(in_padding[after], reach)
    return column.closed()


def _claims_of(cie: DwarfCie, rows: tuple[RowState, ...], column: AddressColumn[Claim]) -> list[int]:
    """Return the numbers of the claims of a program's rows."""
    kind = (cie.ra_register, cie.is_signal_frame, cie.uses_b_key)
    return column.numbers_of(kind, rows, lambda row: Claim(((cie, row),)))


def _put_overlapping(column: AddressColumn[Claim], truth: Truth, fdes: Sequence[int]) -> int:
    """Put the claims of FDEs that overlap, sorted by start; return the number of that for the padding after them.

    Of the FDEs of the best source at an address, any may be the truth. The first one is that which unwinders find: the
    FDE that starts last, and of several such the first in the section.
    """
    entries = truth.entries
    begins = [entries.starts[number] for number in fdes]
    ends = [begin + entries.sizes[number] for begin, number in zip(begins, fdes, strict=True)]
    by_end = sorted(range(len(fdes)), key=ends.__getitem__)
    keys = [
        (entries.rank_of(number), -begin, index) for index, (number, begin) in enumerate(zip(fdes, begins, strict=True))
    ]
    skip_counts: Counter[int] = Counter()
    live: list[tuple[int, int, int]] = []

    def claim_at(address: int, candidates: Sequence[tuple[int, int, int]]) -> Claim:
        rank, begin, _ = candidates[0]
        rows = []
        for _, _, index in candidates:
            _, cie, table = entries.programs[entries.program_numbers[fdes[index]]]
            rows.append((cie, table.states[bisect_right(table.starts, address - begins[index]) - 1]))
        return Claim(tuple(rows), overlap=Overlap(-begin, rank, skip_counts[rank] > 0))

    opened = closed = 0
    for low, high in pairwise(sorted({*begins, *ends})):
        while ends[by_end[closed]] <= low:
            key = keys[by_end[closed]]
            del live[bisect_left(live, key)]
            skip_counts[key[0]] -= fdes[key[2]] in truth.skipped
            closed += 1
        while opened < len(fdes) and begins[opened] <= low:
            insort(live, keys[opened])
            skip_counts[keys[opened][0]] += fdes[opened] in truth.skipped
            opened += 1
        candidates = [key for key in live[:MAX_CANDIDATES] if key[0] == live[0][0]]
        points = {low}
        for _, _, index in candidates:
            starts, begin = entries.programs[entries.program_numbers[fdes[index]]].table.starts, begins[index]
            points.update(
                [begin + s for s in starts[bisect_right(starts, low - begin) : bisect_left(starts, high - begin)]]
            )
        addresses = sorted(points)
        column.put(addresses, [column.number(claim_at(address, candidates)) for address in addresses], high)
    last = sorted(key for key in keys if ends[key[2]] == high)
    return column.number(claim_at(high - 1, [key for key in last if key[0] == last[0][0]][:MAX_CANDIDATES]))
