# SPDX-License-Identifier: Apache-2.0
"""The FDEs of some sections, and their distinct programs, each run once.

Two thirds of a large library's FDEs repeat the instructions of another FDE with the same CIE. A program is a distinct
pair of CIE and instructions, with its rows. Where functions end before their program's last row starts, those of each
size get a program of their own, without the rows past their end.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, NewType, cast

from cfi2sframe.abi import Arch
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.entries import DwarfCie, EntryWalk
from cfi2sframe.dwarf.numbers import Location, PointerBases
from cfi2sframe.dwarf.row_machine import RowMachine
from cfi2sframe.dwarf.rules import UnwindTable
from cfi2sframe.elf.cfi import CfiKind, CfiSection, Relocation
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import CfiError

#: The place of an FDE among the sound FDEs of an image, in the order of its sources.
FdeIndex = NewType("FdeIndex", int)
#: The place of a program among those of an image.
ProgramIndex = NewType("ProgramIndex", int)


class RowFunction(NamedTuple):
    """A function of some bytes at a virtual address, and its rows; the flags are those of a CIE."""

    start_vaddr: int
    size: int
    table: UnwindTable
    is_signal_frame: bool = False
    uses_b_key: bool = False


class FunctionTable(NamedTuple):
    """The functions of one source, in the place of a `CfiSection`.

    `size` counts their bytes in the file. `relocations` has, in an object, the relocation of a function's start, by the
    function's number. `damaged` has the functions that cannot be read: offsets in the file's section, and reasons.
    `names` has names that the source gives to functions, with their addresses, for reports.
    """

    name: str
    kind: CfiKind
    functions: tuple[RowFunction, ...]
    size: int = 0
    relocations: dict[int, Relocation] = {}  # noqa: RUF012 - never changed
    damaged: tuple[tuple[int, str], ...] = ()
    names: tuple[tuple[int, str], ...] = ()


class Program(NamedTuple):
    """A CIE, and the rows that an FDE's instructions make after it; functions that have rows have no `instructions`."""

    cie: DwarfCie
    table: UnwindTable
    instructions: bytes | None = None


class CfiEntry(NamedTuple):
    """A sound FDE as a record: its function, its program, and the section that holds it.

    `start_vaddr` is the function's virtual address (for objects: in the image's layout), `size` its bytes of code.
    `start_offset` is the offset of the FDE's start field in its section; for a function that has rows, its number.
    """

    fde: FdeIndex
    start_vaddr: int
    size: int
    start_offset: int
    program: Program
    section: CfiSection | FunctionTable


class DamagedFde(NamedTuple):
    """A damaged FDE: its offset in its section, and the error.

    `start_vaddr` is its function's address, None where that could not be read.
    """

    offset: int
    error: CfiError
    section: CfiSection | FunctionTable
    start_vaddr: int | None = None


class CfiEntries:
    """The sound FDEs of an image in the order of the sections, as columns; records are made on demand.

    The first three columns and `program_of` are those of `CfiEntry`, the last one as indices of `programs`. `sections`
    has each section with the index of its first FDE. Sections of better sources come first: `sources` has the FDEs of
    each source, and `rank_of` tells which of two FDEs counts. `clipped` has how many bytes FDEs lost that reach past
    the code: their sizes are without these.
    """

    def __init__(
        self,
        starts: Sequence[int],
        sizes: Sequence[int],
        start_offsets: Sequence[int],
        program_of: Sequence[ProgramIndex],
        programs: Sequence[Program],
        sections: Sequence[tuple[int, CfiSection | FunctionTable]],
        clipped: Mapping[int, int],
    ) -> None:
        self.starts: Final = starts
        self.sizes: Final = sizes
        self.start_offsets: Final = start_offsets
        self.program_of: Final = program_of
        self.programs: Final = programs
        self.sections: Final = sections
        first_of: dict[CfiKind, int] = {}
        for first, section in sections:
            first_of.setdefault(section.kind, first)
        edges = pairwise((*first_of.values(), len(starts)))
        self.sources: Final = {kind: range(*edge) for kind, edge in zip(first_of, edges, strict=True)}
        self.clipped: Final = clipped

    @cached_property
    def without_rules(self) -> tuple[FdeIndex, ...]:
        """The functions for which Go's table has no rules: they switch stacks, or pop what they have not pushed."""
        of_go = cast("Sequence[FdeIndex]", self.sources.get("gopclntab", ()))
        if not of_go:
            return ()
        tables = [program.table for program in self.programs]
        empty = {place for place, (_, rows, _) in enumerate(tables) if len(rows) == 1 and rows[0].cfa is None}
        return tuple([fde for fde in of_go if self.program_of[fde] in empty])

    @cached_property
    def precedence(self) -> tuple[Sequence[FdeIndex], ...]:
        """The numbers of all FDEs in groups: an address belongs to the first group that has an FDE there.

        These are the sources. Before `.debug_frame` come the functions for which Go's table has no rules
        (`runtime.systemstack`, `mcall`, `gogo`, `morestack`, `asmcgocall`): Go's `.debug_frame` keeps one rule all
        through each. Before these come rows from instructions, of which only those functions have any.
        """
        groups = {kind: cast("Sequence[FdeIndex]", fdes) for kind, fdes in self.sources.items()}
        if not self.without_rules:
            return tuple(groups.values())
        groups["gopclntab"] = sorted(set(groups["gopclntab"]).difference(self.without_rules))
        first = (groups.pop("eh_frame", ()), groups.pop("code", ()), self.without_rules)
        return tuple([group for group in (*first, *groups.values()) if group])

    def rank_of(self, fde: int) -> int:
        """Return the number of groups of `precedence` that are better than that of an FDE."""
        return next(rank for rank, group in enumerate(self.precedence) if _has(group, fde))

    def program(self, fde: int) -> Program:
        """Return the program of an FDE."""
        return self.programs[self.program_of[fde]]

    def joined(self, others: "CfiEntries") -> "CfiEntries":
        """Return these FDEs, and after them those of another source."""
        first, first_program = len(self), len(self.programs)
        return CfiEntries(
            (*self.starts, *others.starts),
            (*self.sizes, *others.sizes),
            (*self.start_offsets, *others.start_offsets),
            (*self.program_of, *[ProgramIndex(first_program + index) for index in others.program_of]),
            (*self.programs, *others.programs),
            (*self.sections, *[(first + index, section) for index, section in others.sections]),
            {**self.clipped, **{first + index: size for index, size in others.clipped.items()}},
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, fde: int) -> CfiEntry:
        if not 0 <= fde < len(self.starts):
            raise IndexError(fde)
        _, section = self.sections[bisect_right(self.sections, fde, key=itemgetter(0)) - 1]
        columns = self.starts[fde], self.sizes[fde], self.start_offsets[fde]
        return CfiEntry(FdeIndex(fde), *columns, self.program(fde), section)

    def __iter__(self) -> Iterator[CfiEntry]:
        return map(self.__getitem__, range(len(self)))


class EntriesReader:
    """Collects the FDEs of some sections; runs each distinct pair of CIE and instructions once."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        # Arrays: with lists, converting libz3 takes 2 % more memory.
        self.starts: array[int] = array("Q")
        self.sizes: array[int] = array("Q")
        self.start_offsets: array[int] = array("Q")
        self.program_of: list[ProgramIndex] = []
        self.programs: list[Program] = []
        self.sections: list[tuple[int, CfiSection | FunctionTable]] = []
        self.damaged: list[DamagedFde] = []
        #: By CIE, and by instructions or rows; equal CIEs of several sections share their programs.
        self.programs_of: dict[DwarfCie, dict[bytes | UnwindTable, ProgramIndex]] = defaultdict(dict)
        #: The machines by CIE, or the error where a CIE is damaged.
        self.machines: dict[DwarfCie, RowMachine | CfiError] = {}

    def read_rows(self, section: FunctionTable) -> None:
        """Add functions that have rows."""
        self.sections.append((len(self.starts), section))
        plain = _row_cie(self.image.arch)
        for place, function in enumerate(section.functions):
            cie = plain._replace(is_signal_frame=function.is_signal_frame, uses_b_key=function.uses_b_key)
            programs = self.programs_of[cie]
            program = programs.get(function.table)
            if program is None:
                program = programs[function.table] = self.add_program(cie, function.table)
            self.add(function.start_vaddr, function.size, place, program)
        for offset, reason in sorted(section.damaged):
            self.damaged.append(DamagedFde(offset, CfiError(reason, section.name, offset), section))

    def read_bytes(self, section: CfiSection) -> None:
        """Add the FDEs of a section."""
        bases = PointerBases(self.image.byte_order, section.table_vaddr, partial(_load_word, self.image))
        walk = EntryWalk(section, bases)
        self.sections.append((len(self.starts), section))
        damaged: list[DamagedFde] = []
        cie: DwarfCie | None = None
        programs: dict[bytes | UnwindTable, ProgramIndex] = {}
        for fde in walk.fdes():
            if fde.cie is not cie:
                cie = fde.cie
                programs = self.programs_of[cie]
            program = programs.get(fde.instructions)
            if program is None:
                location = Location(fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases)
                try:
                    table = self.machine_of(fde.cie).run(fde.instructions, location)
                except CfiError as damage:
                    error = CfiError(damage.reason, section.name, fde.instructions_offset + (damage.offset or 0))
                    damaged.append(DamagedFde(fde.offset, error, section, fde.pc_begin_vaddr))
                    continue
                program = self.add_program(fde.cie, table, fde.instructions)
                if not table.depends_on_location:
                    programs[fde.instructions] = program
            self.add(fde.pc_begin_vaddr, fde.pc_range, fde.pc_offset, program)
        damaged += [DamagedFde(failure.offset or 0, failure, section) for failure in walk.failures]
        self.damaged += sorted(damaged, key=attrgetter("offset"))

    def add(self, start_vaddr: int, size: int, start_offset: int, program: ProgramIndex) -> None:
        """Add a sound FDE."""
        self.starts.append(start_vaddr)
        self.sizes.append(size)
        self.start_offsets.append(start_offset)
        self.program_of.append(program)

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

    def add_program(self, cie: DwarfCie, table: UnwindTable, instructions: bytes | None = None) -> ProgramIndex:
        """Add a distinct program and return its index."""
        self.programs.append(Program(cie, table, instructions))
        return ProgramIndex(len(self.programs) - 1)

    def read(self, sections: Sequence[CfiSection | FunctionTable]) -> tuple[CfiEntries, tuple[DamagedFde, ...]]:
        """Read sections; return their FDEs, sound and damaged. Raises `CfiError` when one cannot be walked."""
        for section in sections:
            if isinstance(section, FunctionTable):
                self.read_rows(section)
            else:
                self.read_bytes(section)
        clipped = self.clip_at_ends_of_code()
        self.empty_discarded()
        self.cut_at_ends()
        columns = self.starts, self.sizes, self.start_offsets, self.program_of
        return CfiEntries(*columns, tuple(self.programs), self.sections, clipped), tuple(self.damaged)

    def clip_at_ends_of_code(self) -> dict[int, int]:
        """Cut FDEs that reach past the end of the code; return the bytes that each has lost."""
        clipped: dict[int, int] = {}
        columns = self.starts, self.sizes, self.image.code_ends_of(self.starts)
        for fde, (start, size, end) in enumerate(zip(*columns, strict=True)):
            if end is not None and start + size > end:
                self.sizes[fde] = end - start
                clipped[fde] = start + size - end
        return clipped

    def empty_discarded(self) -> None:
        """Empty FDEs of functions that the linker has discarded, where the file has code at their addresses.

        Linkers give them the addresses 0 or 1. At most one FDE there has a function: that of the size of the symbol at
        0 or, without one, the only one that ends before other FDEs start.
        """
        if self.image.code_range_of(0) is None:
            return
        low = [fde for fde, start in enumerate(self.starts) if start <= 1 and self.sizes[fde]]
        live = [fde for fde in low if self.starts[fde] == 0]
        symbol = self.image.functions({0}).get(0)
        if symbol is not None and symbol.size:
            live = [fde for fde in live if self.sizes[fde] == symbol.size]
        else:
            following = min((start for start in self.starts if start > 1), default=1 << 64)
            live = [fde for fde in live if self.sizes[fde] <= following]
        if len({(self.sizes[fde], self.program_of[fde]) for fde in live}) > 1:
            live = []
        for fde in set(low).difference(live):
            self.sizes[fde] = 0

    def cut_at_ends(self) -> None:
        """Give FDEs that end before their program's last row starts another program, without the rows past the end."""
        last_starts = [program.table.starts[-1] for program in self.programs]
        cut: dict[tuple[ProgramIndex, int], ProgramIndex] = {}
        for fde, (index, size) in enumerate(zip(self.program_of, self.sizes, strict=True)):
            if last_starts[index] >= max(size, 1):
                if (index, size) not in cut:
                    whole = self.programs[index]
                    cut[index, size] = self.add_program(whole.cie, whole.table.before(size), whole.instructions)
                self.program_of[fde] = cut[index, size]


def _row_cie(arch: Arch) -> DwarfCie:
    """Return the CIE of functions that have rows, without their flags."""
    return DwarfCie(
        version=3,
        augmentation="",
        code_alignment=1,
        data_alignment=1,
        ra_register=arch.ra_register,
        fde_encoding=d.DW_EH_PE_absptr,
        lsda_encoding=d.DW_EH_PE_omit,
        is_signal_frame=False,
        uses_b_key=False,
        instructions=b"",
    )


def _has(ascending: Sequence[int], value: int) -> bool:
    place = bisect_left(ascending, value)
    return place < len(ascending) and ascending[place] == value


def _load_word(image: ElfImage, vaddr: int) -> int | None:
    data = image.bytes_at(vaddr, 8)
    return None if data is None else int.from_bytes(data, "little" if image.byte_order == "<" else "big")
