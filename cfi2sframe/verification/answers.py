# SPDX-License-Identifier: Apache-2.0
"""What a section says at each address, as a column, and the claims of stubs, which repeat as PCMASK functions do.

Both sides may claim billions of blocks. Between two addresses at which neither of them changes, rows repeat, so one
block of each is compared, or as many as it takes until both begin one at the same address.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache, partial, reduce
from itertools import compress, count, pairwise
from math import lcm
from operator import lt, or_
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.expression import rules_by_pc
from cfi2sframe.elf.ranges import Span, touches
from cfi2sframe.intern import IdentityMap, distinct
from cfi2sframe.sframe.constants import SFRAME_VERSION_1, SFRAME_VERSION_3
from cfi2sframe.sframe.model import NO_BLOCK_SIZE, OUTERMOST, Function
from cfi2sframe.verification.truth import ADDRESS_END, ANYTHING, AddressColumn, Claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.instructions.stub_records import StubScan
    from cfi2sframe.sframe.model import FrameState, FunctionBody, Section


class FoundState(NamedTuple):
    """What a section says: the state in force (None: no row is), and a body with the function's attributes."""

    body: FunctionBody
    state: FrameState | None


class SectionFunctions(NamedTuple):
    """The functions of a section in the order of their starts, as columns. Each ends where the next one starts."""

    version: int
    starts: tuple[int, ...]
    ends: list[int]
    bodies: tuple[FunctionBody, ...]

    @classmethod
    def of(cls, section: Section) -> SectionFunctions:
        """Return those of a section."""
        ordered = section.ascending
        limits = (*ordered.starts[1:], ADDRESS_END)
        sizes = zip(ordered.starts, ordered.sizes, limits, strict=False)
        ends = [min(start + size, limit) for start, size, limit in sizes]
        return cls(section.version, ordered.starts, ends, ordered.bodies)

    @property
    def own_ends(self) -> dict[int, int]:
        """The ends of the PCINC functions by their starts."""
        columns = zip(self.starts, self.ends, self.bodies, strict=True)
        return {start: end for start, end, body in columns if not body.repeat_size}

    def place_at(self, vaddr: int) -> int | None:
        """Return the place of the function that holds an address."""
        place = bisect_right(self.starts, vaddr) - 1
        return place if place >= 0 and vaddr < self.ends[place] else None

    def start_before(self, vaddr: int) -> int:
        """Return the start of the last function that starts at an address or before it."""
        return self.starts[bisect_right(self.starts, vaddr) - 1]

    def lack(self, start: int, end: int) -> bool:
        """Whether no function holds any address of a range."""
        place = bisect_left(self.starts, end) - 1
        return place < 0 or self.ends[place] <= start

    def period(self, place: int) -> int:
        """Return the bytes after which the rows of a function repeat; 1 where they do not."""
        body = self.bodies[place]
        if body.repeat_size != NO_BLOCK_SIZE:
            return body.repeat_size or 1
        # Version 1 tests the bits of the rows' starts in a PC. Later ones divide by 0, and find no row.
        return 1 << max(body.starts, default=0).bit_length() if self.version == SFRAME_VERSION_1 else 1

    def edges(self, start: int, end: int) -> list[int]:
        """Return where functions and rows start and end in a range, with its own start; without rows that repeat."""
        found = {start}
        for place in range(max(0, bisect_right(self.starts, start) - 1), bisect_left(self.starts, end)):
            found |= {self.starts[place], self.ends[place]}
            if not self.bodies[place].repeat_size:
                found.update([self.starts[place] + delta for delta in self.bodies[place].starts])
        return sorted(edge for edge in found if start <= edge < end)

    def changes(self, place: int, others: Sequence[int]) -> list[int]:
        """Return where another row of a function may come into force; `others` are ascending addresses.

        Between two of these, the rows of a PCMASK function are listed only until they repeat.
        """
        start, end, body = self.starts[place], self.ends[place], self.bodies[place]
        if not body.repeat_size:
            return sorted({start, *[start + delta for delta in body.starts if delta < end - start]})
        points = [start, *others[bisect_right(others, start) : bisect_left(others, end)]]
        found = set(points)
        period = self.period(place)
        deltas = {delta for delta in body.starts if delta < period}
        # In version 1, a row is in force where the PC has all bits of its start: only multiples of the lowest one of
        # all these bits are edges.
        bits = reduce(or_, body.starts, 0)
        step = bits & -bits
        for begin, next_point in pairwise([*points, end]):
            limit = min(next_point, begin + period)
            if body.repeat_size != NO_BLOCK_SIZE:
                block = begin - (begin - start) % period
                rows = [first + delta for first in (block, block + period) for delta in deltas]
                found.update([row for row in rows if begin < row < limit])
            elif period > 1:
                found.update(range(-(-(begin + 1) // step) * step, limit, step))
        return sorted(found)


def section_column(functions: SectionFunctions, others: Sequence[int]) -> AddressColumn[FoundState | None]:
    """Return what a section says, None where it has no function; the other column changes at the addresses `others`."""
    column: AddressColumn[FoundState | None] = AddressColumn(None)

    def numbers_of(body: FunctionBody) -> list[int]:
        kind = body.is_signal_frame, body.uses_b_key
        return column.numbers_of(kind, body.states, lambda state: FoundState(body, state))

    def is_plain(body: FunctionBody) -> bool:
        starts = body.starts
        return not body.repeat_size and starts[:1] == (0,) and all(map(lt, starts, starts[1:]))

    without_row = IdentityMap["FunctionBody", int](lambda body: column.number(FoundState(body, None)))
    bodies, body_numbers = distinct(functions.bodies)
    known = [numbers_of(body) for body in bodies]
    are_plain = list(map(is_plain, bodies))
    for place, (start, end, body_number) in enumerate(zip(functions.starts, functions.ends, body_numbers, strict=True)):
        if end <= start:
            continue
        body, numbers = bodies[body_number], known[body_number]
        if are_plain[body_number]:
            column.put_rows(start, end, body.starts, numbers)
            continue
        function = Function(start, end - start, body)
        points: list[int] = []
        held: list[int] = []
        for vaddr in functions.changes(place, others):
            row = function.number_at(vaddr, functions.version)
            number = without_row[body] if row is None else numbers[row]
            if held[-1:] != [number]:
                points.append(vaddr)
                held.append(number)
        column.put(points, held, end)
    return column.closed()


class LostRow(NamedTuple):
    """An address with a row of an old section that a new one does not have."""

    vaddr: int
    is_outermost: bool


def first_lost_row(old: Section, new: Section, ends: Sequence[Span] = ()) -> LostRow | None:
    """Return the first address at which `old` has a row, and `new` has none; None where it has all.

    Where the row of `old` ends the walk (RA is undefined), that of `new` has to do so, too. Otherwise they may differ:
    each is compared with the CFI for itself. In `ends`, walks end, and a row of `old` that goes on is none to be kept.
    """
    before, after = SectionFunctions.of(old), SectionFunctions.of(new)
    found = section_column(after, section_column(before, ()).addresses)
    wanted = section_column(before, found.addresses)
    for (start, end), number in zip(pairwise([*wanted.addresses, ADDRESS_END]), wanted.numbers, strict=True):
        state = _state_of(wanted.answers[number], old.version)
        if state is None:
            continue
        first, last = bisect_right(found.addresses, start) - 1, bisect_left(found.addresses, end)
        for place in range(first, last):
            other = _state_of(found.answers[found.numbers[place]], new.version)
            vaddr = max(start, found.addresses[place])
            is_lost = other is None if state.cfa else other is None or other.cfa is not None
            if is_lost and not (state.cfa and touches(ends, Span(vaddr, vaddr + 1))):
                return LostRow(vaddr, state.cfa is None)
    return None


def _state_of(answer: FoundState | None, version: int) -> FrameState | None:
    """Return the state in force; that of a function without rows is the outermost (version 3, 3.1)."""
    if answer is None or answer.state is not None:
        return answer and answer.state
    body = answer.body
    is_outermost = version >= SFRAME_VERSION_3 and not body.starts and not body.is_flexible
    return OUTERMOST if is_outermost else None


class _Blocks(NamedTuple):
    """Claims that repeat in [start, end): block N starts at `origin` + N * `size`, with claims from its `deltas` on."""

    start: int
    end: int
    origin: int
    size: int
    deltas: tuple[int, ...]
    numbers: tuple[int, ...]


def with_stubs(
    column: AddressColumn[Claim], stubs: StubScan, functions: SectionFunctions
) -> tuple[AddressColumn[Claim], list[int]]:
    """Return the claims with those of stubs in place of the CFI's, and the starts of stubs that lack a function."""
    number_of = IdentityMap["FrameState", int](lambda state: column.number(Claim(state=state)))
    ranges: list[tuple[int, int, list[tuple[int, int]]]] = []
    missed: list[int] = []
    for stub in stubs.functions:
        start, end, body = stub.start_vaddr, stub.end_vaddr, stub.body
        numbers = tuple([number_of[state] for state in body.states])
        points = _points_of(_Blocks(start, end, start, body.repeat_size or stub.size, body.starts, numbers), functions)
        gap = next((place for place, (vaddr, _) in enumerate(points) if functions.place_at(vaddr) is None), None)
        if gap is not None:
            missed.append(start)
            points[gap:] = [(points[gap][0], ANYTHING)]
        ranges.append((start, end, points))
    return column.replaced(sorted(ranges)), missed


def with_rows_by_pc(column: AddressColumn[Claim], arch: Arch, functions: SectionFunctions) -> AddressColumn[Claim]:
    """Return the claims with the value, at each address, of a CFA that depends on the PC: that of a linker's PLT."""
    known: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
    # Thousands of rows may have one expression.
    rules_of = cache(partial(rules_by_pc, arch=arch))
    for number, claim in enumerate(list(column.answers)):
        found = rules_of(claim.rows[0][1].cfa) if len(claim.rows) == 1 else None
        if found is not None:
            ((cie, row),) = claim.rows
            claims = [claim._replace(rows=((cie, row._replace(cfa=rule)),)) for rule in found.rules]
            known[number] = found.size, found.deltas, tuple(map(column.number, claims))
    ranges: list[tuple[int, int, list[tuple[int, int]]]] = []
    for place in compress(count(), map(known.__contains__, column.numbers)) if known else ():
        start, end = column.addresses[place : place + 2]
        blocks = _Blocks(start, end, 0, *known[column.numbers[place]])
        ranges.append((start, end, _points_of(blocks, functions)))
    return column.replaced(ranges) if ranges else column


def _points_of(blocks: _Blocks, functions: SectionFunctions) -> list[tuple[int, int]]:
    """Return the addresses from which on a claim of blocks holds; anything is right once all that follows was seen."""
    start, end, origin, size, deltas, numbers = blocks
    points: list[tuple[int, int]] = []
    for begin, edge in pairwise([*functions.edges(start, end), end]):
        place = functions.place_at(begin)
        limit = min(edge, begin + lcm(size, 1 if place is None else functions.period(place)))
        first = begin - (begin - origin) % size
        rows = [block + delta for block in range(first, limit, size) for delta in deltas]
        vaddrs = [begin, *[row for row in rows if begin < row < limit]]
        points += [(vaddr, numbers[bisect_right(deltas, (vaddr - origin) % size) - 1]) for vaddr in vaddrs]
        if limit < edge:
            points.append((limit, ANYTHING))
    return points
