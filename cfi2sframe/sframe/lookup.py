# SPDX-License-Identifier: Apache-2.0
"""Find the row in force at a PC, as a stack tracer does (version 3, 2.3.3.1 "PC types")."""

from __future__ import annotations

from bisect import bisect_right
from operator import le
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.printable import counted
from cfi2sframe.sframe.constants import SFRAME_VERSION_1, SFRAME_VERSION_3
from cfi2sframe.sframe.decode import DecodedFunction
from cfi2sframe.sframe.model import OUTERMOST, state_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.rules import NamedRule
    from cfi2sframe.sframe.decode import DecodedBody, DecodedRow, DecodedSection
    from cfi2sframe.sframe.model import FrameState


class Found(NamedTuple):
    """Where CFA, RA and FP are at a PC: the function that holds it, and the row in force there.

    `row` is None where the function's rows start later, or where it has none. `version` and `arch` are the section's.
    `cfa`, `ra` and `fp` have registers by name; `state` has them by DWARF's number.
    """

    function: DecodedFunction
    row: DecodedRow | None
    version: int
    arch: Arch

    @property
    def state(self) -> FrameState | None:
        """The rules in force, or None where the section does not say: the rows start later."""
        if self.row is not None:
            return self.row.row.state
        function = self.function
        # Version 3, 3.1: a function without rows has no caller.
        if self.version >= SFRAME_VERSION_3 and not (function.row_count or function.is_flexible):
            return OUTERMOST
        return None

    @property
    def is_outermost(self) -> bool:
        """Whether the frame has no caller: RA is undefined."""
        return self.state is not None and self.state.cfa is None

    @property
    def cfa(self) -> NamedRule | None:
        """The CFA's value. None in an outermost frame, and where no row is in force."""
        return self._named(0)

    @property
    def ra(self) -> NamedRule | None:
        """The return address. None where it is still in its own register; also where `cfa` is None."""
        return self._named(1)

    @property
    def fp(self) -> NamedRule | None:
        """The caller's frame pointer. None where it is still in its own register; also where `cfa` is None."""
        return self._named(2)

    @property
    def mangled_ra(self) -> bool:
        """Whether the return address carries a pointer authentication code (AArch64)."""
        return self.state is not None and self.state.mangled_ra

    def _named(self, number: int) -> NamedRule | None:
        state = self.state
        rule = None if state is None or state.cfa is None else (state.cfa, state.ra, state.fp)[number]
        return None if rule is None else rule.named(self.arch)

    def __repr__(self) -> str:
        if self.state is None:
            return "no row"
        cfa, ra, fp = (None if rule is None else repr(rule) for rule in (self.cfa, self.ra, self.fp))
        return state_text(cfa, ra, fp, mangled_ra=self.mangled_ra)


class Lookup:
    """A searchable view of a decoded section; unsorted sections are sorted once.

    Functions are columns, in the order of their starts: as those of `DecodedSection`, with the `ends` (virtual
    addresses) in place of sizes. Those that start at the same address keep the order of the function table.
    """

    def __init__(self, section: DecodedSection) -> None:
        self.version: Final = section.header.version
        self.arch: Final = section.arch
        starts: Sequence[int] = section.starts
        sizes: Sequence[int] = section.sizes
        body_numbers: Sequence[int] = section.body_numbers
        #: Indices in the function table.
        self._indices: Sequence[int] = range(len(starts))
        if not all(map(le, starts, starts[1:])):
            self._indices = sorted(self._indices, key=starts.__getitem__)
            starts, sizes, body_numbers = (
                [column[index] for index in self._indices] for column in (starts, sizes, body_numbers)
            )
        self.starts: Final = list(starts)
        self.ends: Final = [start + size for start, size in zip(starts, sizes, strict=True)]
        self.body_numbers: Final = body_numbers
        self.bodies: Final[Sequence[DecodedBody]] = section.bodies

    def __repr__(self) -> str:
        return f"<Lookup: version {self.version}, {self.arch.name}, {counted(len(self.starts), 'function')}>"

    @property
    def functions(self) -> list[DecodedFunction]:
        """The functions in the order of their starts, as records, which are made each time."""
        return list(map(self.function_at, range(len(self.starts))))

    def function_at(self, place: int) -> DecodedFunction:
        """Return the function at a place in the order of starts, as a record."""
        start, body = self.starts[place], self.bodies[self.body_numbers[place]]
        return DecodedFunction(self._indices[place], start, self.ends[place] - start, *body)

    def find(self, pc: int) -> Found | None:
        """Return where CFA, RA and FP are at the virtual address `pc`, or None where no function holds it.

        For a return address, look its predecessor up: it may be the first address of the next function.
        """
        function = self.holder_of(pc)
        return (
            None if function is None else Found(function, row_at(function, pc, self.version), self.version, self.arch)
        )

    def holder_of(self, pc: int) -> DecodedFunction | None:
        """Return the function that holds the virtual address `pc`: of several, the one that starts last; or None."""
        place = bisect_right(self.starts, pc) - 1
        return self.function_at(place) if place >= 0 and pc < self.ends[place] else None


def row_at(function: DecodedFunction, pc: int, version: int) -> DecodedRow | None:
    """Return the row of a function for an address inside it, or None where its rows start later.

    `version` is the section's. PCINC: the last row that starts at or before the PC's distance from the function's
    start. PCMASK: the same with the distance from the start of the repeating block; version 1 stores no block size, and
    its readers test the PC's bits instead.
    """
    starts = function.row_list.starts
    if function.is_pcmask and version == SFRAME_VERSION_1:
        matching = [number for number, start in enumerate(starts) if pc & start >= start]
        return function.row_list.row(matching[-1]) if matching else None
    distance = pc - function.start_vaddr
    if function.is_pcmask:
        if function.repeat_size == 0:
            return None
        distance %= function.repeat_size
    number = bisect_right(starts, distance) - 1
    return function.row_list.row(number) if number >= 0 else None
