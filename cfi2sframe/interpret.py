# SPDX-License-Identifier: Apache-2.0
"""All call frame information of an image: read, interpreted and lowered, each distinct program once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.entries import CfiFailure, CfiTable, DwarfCie, DwarfFde, parse_entries
from cfi2sframe.dwarf.machine import CfiProgram, Location, RowMachine
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.elf.cfi import CfiKind, CfiSection, find_cfi
from cfi2sframe.errors import CfiError
from cfi2sframe.lower import Lowering, Skip, Target, check_target
from cfi2sframe.reasons import SkipReason

if TYPE_CHECKING:
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


class Cfi(NamedTuple):
    """All call frame information of an image, interpreted and lowered."""

    sections: tuple[CfiSection, ...]
    entries: tuple[CfiEntry, ...]
    failures: tuple[Failure, ...]
    programs: tuple[Program, ...]


def load_cfi(image: ElfImage, target: Target, source: CfiKind | None = None) -> Cfi:
    """Read, interpret and lower all CFI of an image.

    Raises `InputError` when there is none or it cannot be walked, `RequestError` when the version cannot be had.
    """
    check_target(target)
    sections = find_cfi(image, source)
    loader = _Loader(image, target)
    for section in sections:
        loader.add(section)
    return Cfi(sections, tuple(loader.entries), tuple(loader.failures), tuple(loader.programs))


class _Loader:
    """Runs each distinct (CIE, instructions) once: two thirds of a large library's FDEs repeat one seen before."""

    def __init__(self, image: ElfImage, target: Target) -> None:
        self.image = image
        self.machine = RowMachine(image.arch)
        self.lowering = Lowering(target)
        self.entries: list[CfiEntry] = []
        self.failures: list[Failure] = []
        self.programs: list[Program] = []
        self.cuts: dict[tuple[int, int], Program] = {}
        self.tables: dict[DwarfCie, dict[bytes, Program | CfiError]] = {}

    def add(self, section: CfiSection) -> None:
        bases = PointerBases(self.image.byte_order, section.table_vaddr, self._load_word)
        table: CfiTable = parse_entries(section, bases)
        self.failures += [Failure(failure, section, None) for failure in table.failures]
        cie: DwarfCie | None = None
        programs: dict[bytes, Program | CfiError] = {}
        add, make_entry = self.entries.append, tuple.__new__
        for fde in table.fdes:
            _offset, fde_cie, _pc_begin, pc_range, instructions, _, _ = fde
            if fde_cie is not cie:
                cie = fde_cie
                programs = self.tables.setdefault(cie, {})
            program = programs.get(instructions)
            if program is None:
                program = self._run(fde, section, bases, programs)
            if isinstance(program, CfiError):
                error = CfiError(program.reason, section.name, fde.instructions_offset + (program.offset or 0))
                self.failures.append(Failure(CfiFailure(fde.offset, error), section, fde.pc_begin_vaddr))
                continue
            if not program[4] < pc_range <= _MAX_FUNCTION_SIZE:
                program = self._fit(program, pc_range)
            add(make_entry(CfiEntry, (fde, program, section)))

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
            result = self.lowering.lower(rows.starts, rows.states, program.cie)
            known = Program(len(self.programs), program.cie, rows, result, rows.starts[-1])
            self.programs.append(known)
            self.cuts[key] = known
        return known

    def _too_large(self, program: Program, size: int) -> Program:
        """Return a program that cannot be said for a function whose size no record can hold."""
        reason = Skip(SkipReason.FUNCTION_TOO_LARGE, f"{size:,} bytes", 0)
        known = program._replace(number=len(self.programs), result=reason)
        self.programs.append(known)
        return known

    def _load_word(self, vaddr: int) -> int | None:
        data = self.image.bytes_at(vaddr, 8)
        return None if data is None else int.from_bytes(data, "little" if self.image.byte_order == "<" else "big")

    def _run(
        self,
        fde: DwarfFde,
        section: CfiSection,
        bases: PointerBases,
        programs: dict[bytes, Program | CfiError],
    ) -> Program | CfiError:
        location = tuple.__new__(Location, (fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases))
        result: Program | CfiError
        depends_on_location = False
        try:
            rows = self.machine.run(fde.cie, fde.instructions, location)
            depends_on_location = rows.depends_on_location
            lowered = self.lowering.lower(rows.starts, rows.states, fde.cie)
            result = Program(len(self.programs), fde.cie, rows, lowered, rows.starts[-1])
            self.programs.append(result)
        except CfiError as error:
            result = error
            depends_on_location = True
        if not depends_on_location:
            programs[fde.instructions] = result
        return result
