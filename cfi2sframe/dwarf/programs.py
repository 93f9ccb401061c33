# SPDX-License-Identifier: Apache-2.0
"""The FDEs of some sections, and their distinct programs, each run once.

Two thirds of a large library's FDEs repeat the instructions of another FDE with the same CIE. A program is a distinct
pair of CIE and instructions, with its rows. Where functions end before their program's last row starts, those of each
size get a program of their own, without the rows past their end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property, partial
from itertools import pairwise
from operator import add, attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, cast

from cfi2sframe.dwarf.entries import DwarfCie, DwarfFde, EntryWalk
from cfi2sframe.dwarf.machine import RowMachine
from cfi2sframe.dwarf.numbers import Location, PointerBases
from cfi2sframe.dwarf.row_section import RowFdes, RowSection
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cfi2sframe.dwarf.rules import UnwindTable
    from cfi2sframe.elf.cfi import CfiKind, CfiSection
    from cfi2sframe.elf.image import ElfImage


#: The place of an FDE among the sound FDEs of an image, in the order of its sources.
FdeIndex = NewType("FdeIndex", int)
#: The place of a program among those of an image.
ProgramIndex = NewType("ProgramIndex", int)


class Program(NamedTuple):
    """The rows that an FDE's instructions make after its CIE's; `number` is the program's index among its file's."""

    number: int
    cie: DwarfCie
    table: UnwindTable


class CfiEntry(NamedTuple):
    """An FDE with its number among the sound FDEs of its file, its program, and the section that holds it."""

    number: int
    fde: DwarfFde
    program: Program
    section: CfiSection | RowSection


class DamagedFde(NamedTuple):
    """A damaged FDE: where it is in its section, and what is wrong.

    `start_vaddr` is its function's address, None where that could not be read.
    """

    offset: int
    error: CfiError
    section: CfiSection | RowSection
    start_vaddr: int | None = None


class CfiEntries:
    """The sound FDEs of an image, numbered in the order of the sections, as columns; records are made on demand.

    `starts` (virtual addresses) and `sizes` (bytes) are those of the functions, `offsets` (bytes) those of the FDEs in
    their sections, and `program_numbers` are indices of `programs`. Sections of better sources come first:
    `sources` has the FDEs of each source; `rank_of` tells which of two FDEs counts.
    `clipped` has how many bytes FDEs lost that reach past the code: their sizes are without these.
    """

    def __init__(
        self,
        starts: Sequence[int],
        sizes: Sequence[int],
        offsets: Sequence[int],
        program_numbers: Sequence[ProgramIndex],
        programs: Sequence[Program],
        walks: Iterable[tuple[int, EntryWalk | RowFdes]],
        clipped: Mapping[int, int] | None = None,
    ) -> None:
        self.starts: Final = starts
        self.sizes: Final = sizes
        self.offsets: Final = offsets
        self.program_numbers: Final = program_numbers
        self.programs: Final = programs
        #: For each section the number of its first FDE, and the pass over its entries.
        self._walks: Final = tuple(walks)
        first_of: dict[CfiKind, int] = {}
        for first, walk in self._walks:
            first_of.setdefault(walk.section.kind, first)
        edges = pairwise((*first_of.values(), len(starts)))
        self.sources: Final = {kind: range(*edge) for kind, edge in zip(first_of, edges, strict=True)}
        self.clipped: Final = clipped or {}

    @cached_property
    def precedence(self) -> tuple[Sequence[FdeIndex], ...]:
        """The numbers of all FDEs in groups: an address belongs to the first group that has an FDE there.

        These are the sources. Before `.debug_frame` come the functions for which Go's table has no rules: they switch
        stacks, or pop what they have not pushed (`runtime.systemstack`, `mcall`, `gogo`, `morestack`, `asmcgocall`),
        and Go's `.debug_frame` keeps one rule all through each.
        """
        groups = [cast("Sequence[FdeIndex]", fdes) for fdes in self.sources.values()]
        kinds = list(self.sources)
        if "gopclntab" in kinds and "debug_frame" in kinds:
            empty = {p.number for p in self.programs if len(p.table.states) == 1 and p.table.states[0].cfa is None}
            of_go = groups[kinds.index("gopclntab")]
            without_rules = [number for number in of_go if self.program_numbers[number] in empty]
            groups[kinds.index("gopclntab")] = sorted(set(of_go).difference(without_rules))
            groups.insert(kinds.index("debug_frame"), without_rules)
        return tuple(groups)

    def rank_of(self, number: int) -> int:
        """Return how many groups of `precedence` are better than that of an FDE."""
        return next(rank for rank, group in enumerate(self.precedence) if _has(group, number))

    def joined(self, others: CfiEntries) -> CfiEntries:
        """Return these FDEs, and after them those of another source, with the numbers that follow."""
        first, first_program = len(self), len(self.programs)
        return CfiEntries(
            (*self.starts, *others.starts),
            (*self.sizes, *others.sizes),
            (*self.offsets, *others.offsets),
            (*self.program_numbers, *[ProgramIndex(first_program + number) for number in others.program_numbers]),
            (*self.programs, *[p._replace(number=first_program + p.number) for p in others.programs]),
            (*self._walks, *[(first + number, walk) for number, walk in others._walks]),
            {**self.clipped, **{first + number: size for number, size in others.clipped.items()}},
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> CfiEntry:
        if not 0 <= number < len(self.starts):
            raise IndexError(number)
        walk = self._walks[bisect_right(self._walks, number, key=itemgetter(0)) - 1][1]
        fde = walk.fde_at(self.offsets[number])
        if number in self.clipped:
            fde = fde._replace(pc_range=self.sizes[number])
        return CfiEntry(number, fde, self.programs[self.program_numbers[number]], walk.section)

    def __iter__(self) -> Iterator[CfiEntry]:
        return map(self.__getitem__, range(len(self)))


class EntriesReader:
    """Collects the FDEs of some sections; runs each distinct pair of CIE and instructions once."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        # Arrays, because boxed integers scatter over the heap.
        self.starts: array[int] = array("Q")
        self.sizes: array[int] = array("Q")
        self.offsets: array[int] = array("Q")
        self.program_numbers: list[ProgramIndex] = []
        self.programs: list[Program] = []
        self.walks: list[tuple[int, EntryWalk | RowFdes]] = []
        self.damaged: list[DamagedFde] = []
        #: Numbers of programs by CIE and instructions or rows; equal CIEs of several sections share their programs.
        self.known: dict[DwarfCie, dict[bytes | UnwindTable, ProgramIndex]] = defaultdict(dict)
        #: The machines by CIE, or the error where a CIE is damaged.
        self.machines: dict[DwarfCie, RowMachine | CfiError] = {}

    def read_rows(self, section: RowSection) -> None:
        """Add functions that have rows."""
        walk = RowFdes(section, self.image.arch)
        self.walks.append((len(self.starts), walk))
        for function, fde in zip(section.functions, walk.fdes(), strict=True):
            known = self.known[fde.cie]
            number = known.get(function.table)
            if number is None:
                number = known[function.table] = self.add_program(fde.cie, function.table)
            self.add(fde, number)
        for offset, reason in sorted(section.damaged):
            self.damaged.append(DamagedFde(offset, CfiError(reason, section.name, offset), section))

    def read_bytes(self, section: CfiSection) -> None:
        """Add the FDEs of a section."""
        bases = PointerBases(self.image.byte_order, section.table_vaddr, partial(_load_word, self.image))
        walk = EntryWalk(section, bases)
        self.walks.append((len(self.starts), walk))
        damaged: list[DamagedFde] = []
        cie: DwarfCie | None = None
        known: dict[bytes | UnwindTable, ProgramIndex] = {}
        for fde in walk.fdes():
            if fde.cie is not cie:
                cie = fde.cie
                known = self.known[cie]
            number = known.get(fde.instructions)
            if number is None:
                location = Location(fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases)
                try:
                    table = self.machine_of(fde.cie).run(fde.instructions, location)
                except CfiError as damage:
                    error = CfiError(damage.reason, section.name, fde.instructions_offset + (damage.offset or 0))
                    damaged.append(DamagedFde(fde.offset, error, section, fde.pc_begin_vaddr))
                    continue
                number = self.add_program(fde.cie, table)
                if not table.depends_on_location:
                    known[fde.instructions] = number
            self.add(fde, number)
        damaged += [DamagedFde(failure.offset or 0, failure, section) for failure in walk.failures]
        self.damaged += sorted(damaged, key=attrgetter("offset"))

    def add(self, fde: DwarfFde, program_number: ProgramIndex) -> None:
        """Add a sound FDE."""
        self.starts.append(fde.pc_begin_vaddr)
        self.sizes.append(fde.pc_range)
        self.offsets.append(fde.offset)
        self.program_numbers.append(program_number)

    def machine_of(self, cie: DwarfCie) -> RowMachine:
        """Return the machine of a CIE. Raises `CfiError` when the CIE is damaged."""
        machine = self.machines.get(cie)
        if machine is None:
            try:
                machine = RowMachine(cie, self.image.arch)
            except CfiError as error:
                machine = error
            self.machines[cie] = machine
        if isinstance(machine, CfiError):
            raise CfiError(f"in its CIE: {machine.reason}")
        return machine

    def add_program(self, cie: DwarfCie, table: UnwindTable) -> ProgramIndex:
        """Add a distinct program and return its number."""
        self.programs.append(Program(len(self.programs), cie, table))
        return ProgramIndex(len(self.programs) - 1)

    def read(self, sections: Sequence[CfiSection | RowSection]) -> tuple[CfiEntries, tuple[DamagedFde, ...]]:
        """Read sections; return their FDEs, sound and damaged. Raises `CfiError` when one cannot be walked."""
        for section in sections:
            if isinstance(section, RowSection):
                self.read_rows(section)
            else:
                self.read_bytes(section)
        clipped = self.clip_at_ends_of_code()
        self.cut_at_ends()
        entries = CfiEntries(
            self.starts, self.sizes, self.offsets, self.program_numbers, tuple(self.programs), self.walks, clipped
        )
        return entries, tuple(self.damaged)

    def clip_at_ends_of_code(self) -> dict[int, int]:
        """Take what is past the code from FDEs that reach over its end; return how many bytes each has lost."""
        order = sorted(range(len(self.starts)), key=self.starts.__getitem__)
        starts = list(map(self.starts.__getitem__, order))
        ends = list(map(add, starts, map(self.sizes.__getitem__, order)))
        clipped: dict[int, int] = {}
        for place in self.image.not_code(starts, ends):
            end = self.image.code_end_of(starts[place])
            if end is not None:
                self.sizes[order[place]] = end - starts[place]
                clipped[order[place]] = ends[place] - end
        return clipped

    def cut_at_ends(self) -> None:
        """Give FDEs that end before their program's last row starts another program, without the rows past the end."""
        last_starts = [program.table.starts[-1] for program in self.programs]
        cut: dict[tuple[ProgramIndex, int], ProgramIndex] = {}
        for entry, (number, size) in enumerate(zip(self.program_numbers, self.sizes, strict=True)):
            if last_starts[number] >= max(size, 1):
                if (number, size) not in cut:
                    program = self.programs[number]
                    cut[number, size] = self.add_program(program.cie, program.table.before(size))
                self.program_numbers[entry] = cut[number, size]


def _has(ascending: Sequence[int], number: int) -> bool:
    place = bisect_left(ascending, number)
    return place < len(ascending) and ascending[place] == number


def _load_word(image: ElfImage, vaddr: int) -> int | None:
    data = image.bytes_at(vaddr, 8)
    return None if data is None else int.from_bytes(data, "little" if image.byte_order == "<" else "big")
