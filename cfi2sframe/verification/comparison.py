# SPDX-License-Identifier: Apache-2.0
"""The state of one verification: the section, what has been found so far, and how rows are compared."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.expression import Shapes
from cfi2sframe.intern import distinct
from cfi2sframe.sframe.model import Function
from cfi2sframe.verification.findings import Difference
from cfi2sframe.verification.row_difference import attribute_difference, row_difference
from cfi2sframe.verification.row_edges import RowEdges

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.padding import Padding
    from cfi2sframe.sframe.model import Found, FrameState, Section
    from cfi2sframe.verification.address_set import AddressSet
    from cfi2sframe.verification.findings import Kind


class Ordered:
    """The functions of a section in the order of their starts, as columns: `bodies[body_numbers[N]]` is N's body."""

    def __init__(self, section: Section) -> None:
        self._section = section.ascending
        self.version = section.version
        self.starts = self._section.starts
        self.ends = [start + size for start, size in zip(self.starts, self._section.sizes, strict=True)]
        self.bodies, self.body_numbers = distinct(self._section.bodies)

    def function_at(self, place: int) -> Function:
        """Return the function at a place."""
        return Function(self.starts[place], self._section.sizes[place], self._section.bodies[place])

    def holder_of(self, pc: int) -> Function | None:
        """Return the function that holds an address."""
        return self._section.holder_of(pc)

    def find(self, pc: int) -> Found | None:
        """Return the row in force at an address."""
        return self._section.find(pc)


class Absence(NamedTuple):
    """What a section need not describe, as its version cannot.

    `skipped` are the numbers of FDEs, `holes` addresses in other FDEs; those in `may_lack_parts` may be absent
    altogether for their holes.
    """

    skipped: Container[int]
    holes: AddressSet
    may_lack_parts: Container[int]


class Comparison:
    """The comparison of one section with one image: collects differences, and counts addresses and absent FDEs."""

    def __init__(
        self,
        image: ElfImage,
        decoded: Section,
        absence: Absence,
        padding: Padding,
        rank_of: Callable[[int], int],
    ) -> None:
        self.absence = absence
        #: The rank of the source of the FDE of a number.
        self.rank_of = rank_of
        self.arch = image.arch
        self.version = decoded.version
        self.lookup = Ordered(decoded)
        self.edges = RowEdges(self.lookup)
        self.differences: list[Difference] = []
        self.point_count = 0
        self.left_out_count = 0
        self._shapes = Shapes(image.byte_order)
        self._padding_sizes = padding.sizes

    def report(self, kind: Kind, vaddr: int, message: str) -> None:
        """Add a difference."""
        self.differences.append(Difference(kind, vaddr, message))

    def lacks(self, begin: int, end: int) -> bool:
        """Return whether no function of the section holds any of the addresses `[begin, end)`."""
        place = bisect_left(self.lookup.starts, end) - 1
        return place < 0 or self.lookup.ends[place] <= begin

    def end_of_padding(self, vaddr: int) -> int:
        """Return the end of the padding that starts at an address; the address itself where none does."""
        return vaddr + self._padding_sizes.get(vaddr, 0)

    def row_difference(self, truth: RowState, state: FrameState | None) -> str | None:
        """Return how a state of the section (None: no row) differs from a row of the DWARF table; None: not at all."""
        return row_difference(truth, state, self.arch, self._shapes)

    def compare_attributes(self, entries: Sequence[CfiEntry], function: Function, *, signs_ra: bool) -> None:
        """Compare what applies to all rows of an FDE: signal frame, key of a signed RA.

        Where several FDEs hold the function's addresses, one of them has to agree. `signs_ra`: a row that was compared
        has a signed RA; otherwise the key has no effect.
        """
        problems = [
            attribute_difference(entry.fde.cie, function.body, self.version, signs_ra=signs_ra) for entry in entries
        ]
        if None not in problems:
            vaddr = max(entries[0].fde.pc_begin_vaddr, function.start_vaddr)
            for problem in problems:
                if problem is not None:
                    self.report("wrong", vaddr, problem)
