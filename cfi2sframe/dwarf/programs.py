# SPDX-License-Identifier: Apache-2.0
"""All call frame information of an image: read, interpreted and lowered, each distinct program once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.entries import CfiFailure, DwarfCie, DwarfFde, EntryWalk
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.dwarf.row_machine import CfiProgram, Location, RowMachine
from cfi2sframe.elf.cfi import CfiKind, CfiSection, find_cfi
from cfi2sframe.errors import CfiError
from cfi2sframe.lower import Lowering, Skip, Target, check_target
from cfi2sframe.reasons import SkipReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FunctionBody

#: All versions store a function's size in 32 bits.
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Program(NamedTuple):
    """An instruction string with its CIE: what it says, once for all FDEs that repeat it."""

    number: int
    cie: DwarfCie
    rows: CfiProgram
    result: FunctionBody | Skip
    last_start_delta: int


class CfiEntry(NamedTuple):
    """An FDE with the program it runs and the section it stands in."""

    fde: DwarfFde
    program: Program
    section: CfiSection


class Failure(NamedTuple):
    """A damaged FDE and the section it stands in; `start_vaddr` where its function's start could be read."""

    failure: CfiFailure
    section: CfiSection
    start_vaddr: int | None


class CfiEntries:
    """The sound FDEs of an image by number, in the order of the sections, as columns; an entry is made when asked for.

    `starts` and `sizes` are those of the functions, `offsets` those of the FDEs in their sections, all in bytes.
    `walks` has for each section the number of its first FDE, and the way through its entries.
    """

    def __init__(
        self,
        starts: Sequence[int],
        sizes: Sequence[int],
        offsets: Sequence[int],
        programs: Iterable[Program],
        walks: Sequence[tuple[int, EntryWalk]],
    ) -> None:
        self.starts: Final = starts
        self.sizes: Final = sizes
        self.offsets: Final = offsets
        self.programs: Final = tuple(programs)
        self._first_numbers: Final = tuple(first for first, _ in walks)
        self._walks: Final = tuple(walk for _, walk in walks)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> CfiEntry:
        if not 0 <= number < len(self.starts):
            raise IndexError(number)
        walk = self._walks[bisect_right(self._first_numbers, number) - 1]
        return CfiEntry(walk.fde_at(self.offsets[number]), self.programs[number], walk.section)

    def __iter__(self) -> Iterator[CfiEntry]:
        number = 0
        for walk, end in zip(self._walks, (*self._first_numbers[1:], len(self.starts)), strict=True):
            for fields in walk.fdes():
                # Others of the section have turned out to be damaged.
                if number < end and fields[0] == self.offsets[number]:
                    yield CfiEntry(DwarfFde._make(fields), self.programs[number], walk.section)
                    number += 1


class Cfi(NamedTuple):
    """All call frame information of an image, interpreted and lowered.

    `failures` are in the order of the sections and of the FDEs in them. `skipped` are the programs that cannot be said,
    of all that entries may have.
    """

    sections: tuple[CfiSection, ...]
    entries: CfiEntries
    failures: tuple[Failure, ...]
    skipped: tuple[Program, ...]


def load_cfi(image: ElfImage, target: Target, source: CfiKind | None = None) -> Cfi:
    """Read, interpret and lower all CFI of an image.

    Raises `InputError` when there is none or it cannot be walked, `BudgetError` when it has far more rows that differ
    than the image's size can account for, `RequestError` when the version cannot be had.
    """
    check_target(target)
    sections = find_cfi(image, source)
    loader = _Loader(image, target)
    for section in sections:
        loader.add(section)
    return Cfi(sections, loader.entries(), tuple(loader.failures), tuple(loader.skipped))


class _Loader:
    """Runs each distinct (CIE, instructions) once: two thirds of a large library's FDEs repeat one seen before."""

    def __init__(self, image: ElfImage, target: Target) -> None:
        self.image = image
        self.machine = RowMachine(image.arch, budget=image.budget)
        self.lowering = Lowering(target)
        # As objects they would be all over the memory.
        self.starts: array[int] = array("Q")
        self.sizes: array[int] = array("Q")
        self.offsets: array[int] = array("Q")
        self.entry_programs: list[Program] = []
        self.walks: list[tuple[int, EntryWalk]] = []
        self.failures: list[Failure] = []
        self.program_count = 0
        self.skipped: list[Program] = []
        self.cuts: dict[tuple[int, int], Program] = {}
        self.tables: dict[DwarfCie, dict[bytes, Program]] = {}

    def entries(self) -> CfiEntries:
        return CfiEntries(self.starts, self.sizes, self.offsets, self.entry_programs, self.walks)

    def add(self, section: CfiSection) -> None:
        """Add a section's FDEs, sound ones and damaged ones."""
        bases = PointerBases(self.image.byte_order, section.table_vaddr, partial(_load_word, self.image))
        walk = EntryWalk(section, bases)
        self.walks.append((len(self.starts), walk))
        program_failures: list[Failure] = []
        cie: DwarfCie | None = None
        programs: dict[bytes, Program] = {}
        add_start, add_size = self.starts.append, self.sizes.append
        add_offset, add_program = self.offsets.append, self.entry_programs.append
        for offset, fde_cie, pc_begin, pc_range, instructions, instructions_offset, _ in walk.fdes():
            if fde_cie is not cie:
                cie = fde_cie
                programs = self.tables.setdefault(cie, {})
            program = programs.get(instructions)
            if program is None:
                try:
                    rows = self.machine.run_quickly(fde_cie, instructions)
                    if rows is None:
                        location = Location(pc_begin, section.vaddr + instructions_offset, walk.bases)
                        rows = self.machine.walk(fde_cie, instructions, location)
                    program = self._lower(fde_cie, rows)
                except CfiError as damage:
                    error = CfiError(damage.reason, section.name, instructions_offset + (damage.offset or 0))
                    program_failures.append(Failure(CfiFailure(offset, error), section, pc_begin))
                    continue
                if not rows.depends_on_location:
                    programs[instructions] = program
            if not program[4] < pc_range <= _MAX_FUNCTION_SIZE:
                program = self._fit(program, pc_range)
            add_start(pc_begin)
            add_size(pc_range)
            add_offset(offset)
            add_program(program)
        failures = [*(Failure(failure, section, None) for failure in walk.failures), *program_failures]
        self.failures += sorted(failures, key=_offset_of)

    def _fit(self, program: Program, size: int) -> Program:
        """Return what a program says of a function that ends before the last row, or is too large for a record."""
        if program.last_start_delta >= size:
            program = self._cut(program, size)
        return self._too_large(program, size) if size > _MAX_FUNCTION_SIZE else program

    def _cut(self, program: Program, size: int) -> Program:
        """Return a program without the rows behind its function's end: what they say must not count."""
        key = (program.number, size)
        known = self.cuts.get(key)
        if known is None:
            starts, states, _ = program.rows
            count = bisect_left(starts, max(size, 1))
            rows = program.rows._replace(starts=starts[:count], states=states[:count])
            known = self.cuts[key] = self._lower(program.cie, rows)
        return known

    def _too_large(self, program: Program, size: int) -> Program:
        """Return a program that cannot be said for a function whose size no record can hold."""
        reason = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
        return self._add_program(program.cie, program.rows, reason)

    def _lower(self, cie: DwarfCie, rows: CfiProgram) -> Program:
        """Lower a program, and add it to those of the file."""
        return self._add_program(cie, rows, self.lowering.lower(rows[0], rows[1], cie))

    def _add_program(self, cie: DwarfCie, rows: CfiProgram, result: FunctionBody | Skip) -> Program:
        program: Program = tuple.__new__(Program, (self.program_count, cie, rows, result, rows[0][-1]))
        self.program_count += 1
        if isinstance(result, Skip):
            self.skipped.append(program)
        return program


def _offset_of(failure: Failure) -> int:
    return failure.failure.offset


def _load_word(image: ElfImage, vaddr: int) -> int | None:
    data = image.bytes_at(vaddr, 8)
    return None if data is None else int.from_bytes(data, "little" if image.byte_order == "<" else "big")
