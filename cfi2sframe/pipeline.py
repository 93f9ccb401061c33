# SPDX-License-Identifier: Apache-2.0
"""The one place that strings the stages together: an image in, a section and an account of every FDE out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.arrange import Arrangement, Range, arrange, cut, split_points
from cfi2sframe.dwarf.entries import CfiFailure, CfiTable, DwarfCie, DwarfFde, parse_entries
from cfi2sframe.dwarf.machine import CfiProgram, Location, RowMachine
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.elf.cfi import CfiKind, CfiSection, find_cfi
from cfi2sframe.errors import CfiError, InputError, RequestError
from cfi2sframe.lower import Lowering, Skip, Target, check_target
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import SectionPlan, plan_section
from cfi2sframe.sframe.model import Function, FunctionBody, Section

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage

#: Where a linked file's section is assumed to lie when nobody says: the next boundary of the largest common page size.
_SECTION_BOUNDARY: Final = 0x10000
_MAX_FUNCTION_SIZE: Final = 0xFFFFFFFF


class Options(NamedTuple):
    """What the caller may choose.

    `section_vaddr` None: the first 64 KiB boundary past the last PT_LOAD (objects: 0).
    """

    version: int = SFRAME_VERSION_3
    errata: int = 2
    source: CfiKind | None = None
    section_vaddr: int | None = None
    all_keep_frame_pointer: bool = False


class Program(NamedTuple):
    """An instruction string with its CIE: what it says, once for all FDEs that repeat it."""

    number: int
    cie: DwarfCie
    rows: CfiProgram
    result: FunctionBody | Skip


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


class Conversion(NamedTuple):
    """The section made of an image, and what became of every FDE.

    `pieces` pairs each function of `section` with the number of its entry in `cfi.entries`. `section_vaddr` is what
    starts are relative to. `data` is empty when there is nothing to say.
    """

    image: ElfImage
    target: Target
    cfi: Cfi
    arrangement: Arrangement
    section: Section
    piece_entries: tuple[int, ...]
    plan: SectionPlan
    section_vaddr: int
    data: bytes

    @property
    def left_out(self) -> tuple[tuple[CfiEntry, Skip], ...]:
        """The functions that this version cannot say, with their reasons, in the order of the FDEs."""
        return tuple(
            (entry, entry.program.result)
            for number, entry in enumerate(self.cfi.entries)
            if isinstance(entry.program.result, Skip) and number not in self.arrangement.dropped
        )


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
        self.tables: dict[DwarfCie, dict[bytes, Program | CfiError]] = {}

    def add(self, section: CfiSection) -> None:
        bases = PointerBases(self.image.byte_order, section.table_vaddr, self._load_word)
        table: CfiTable = parse_entries(section, bases)
        self.failures += [Failure(failure, section, None) for failure in table.failures]
        cie: DwarfCie | None = None
        programs: dict[bytes, Program | CfiError] = {}
        add = self.entries.append
        for fde in table.fdes:
            if fde.cie is not cie:
                cie = fde.cie
                programs = self.tables.setdefault(cie, {})
            program = programs.get(fde.instructions)
            if program is None:
                program = self._run(fde, section, bases, programs)
            if isinstance(program, CfiError):
                error = CfiError(program.reason, section.name, fde.instructions_offset + (program.offset or 0))
                self.failures.append(Failure(CfiFailure(fde.offset, error), section, fde.pc_begin_vaddr))
            else:
                add(CfiEntry(fde, program, section))

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
        location = Location(fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases)
        result: Program | CfiError
        depends_on_location = False
        try:
            rows = self.machine.run(fde.cie, fde.instructions, location)
            depends_on_location = rows.depends_on_location
            result = Program(len(self.programs), fde.cie, rows, self.lowering.lower(rows.rows, fde.cie))
            self.programs.append(result)
        except CfiError as error:
            result = error
            depends_on_location = True
        if not depends_on_location:
            programs[fde.instructions] = result
        return result


def default_section_vaddr(image: ElfImage) -> int:
    """Return where a section is assumed to lie: past the last PT_LOAD; 0 in an object."""
    if image.is_relocatable:
        return 0
    return -(-image.end_of_segments() // _SECTION_BOUNDARY) * _SECTION_BOUNDARY


def convert_image(image: ElfImage, options: Options = Options()) -> Conversion:
    """Convert an image's CFI to an SFrame section.

    Raises `InputError` when the CFI cannot be used, `RequestError` when the version, its fields or its flags cannot
    hold what was asked for.
    """
    target = Target(image.arch, options.version, options.errata)
    if options.all_keep_frame_pointer and options.version >= SFRAME_VERSION_3:
        raise RequestError("version 3 has no frame pointer flag; versions 1 and 2 have it")
    cfi = load_cfi(image, target, options.source)
    if not cfi.entries and cfi.failures:
        first = cfi.failures[0].failure.error
        raise InputError(f"no usable FDE; the first is damaged: {first.reason}", first.where, first.offset)
    section_vaddr = default_section_vaddr(image) if options.section_vaddr is None else options.section_vaddr
    return assemble(image, target, cfi, section_vaddr, all_keep_frame_pointer=options.all_keep_frame_pointer)


def assemble(
    image: ElfImage,
    target: Target,
    cfi: Cfi,
    section_vaddr: int,
    *,
    all_keep_frame_pointer: bool = False,
    keep_layout: bool = False,
) -> Conversion:
    """Arrange lowered CFI as a section at an address, and encode it.

    `keep_layout` leaves an object's functions at the addresses of the image's layout, where no two are the same,
    instead of putting every section at 0. Raises `RequestError` when a field cannot hold its value.
    """
    arrangement = arrange_entries(image, cfi)
    functions: list[Function] = []
    piece_entries: list[int] = []
    pieces = arrangement.pieces
    if image.is_relocatable:
        # Linkers expect an object's functions in the order of its source.
        pieces = tuple(sorted(pieces))
    for number, start, end in pieces:
        entry = cfi.entries[number]
        body = entry.program.result
        if isinstance(body, Skip):
            continue
        begin = entry.fde.pc_begin_vaddr
        body = cut(body, start - begin, end - begin)
        for function in _split(Function(start, end - start, body), target):
            functions.append(function)
            piece_entries.append(number)
    section = Section(
        target.version,
        target.arch.abi_id,
        tuple(functions),
        is_sorted=not image.is_relocatable,
        start_is_pcrel=target.start_is_pcrel,
        all_keep_frame_pointer=all_keep_frame_pointer,
    )
    placed = section if keep_layout else _as_placed(section, image)
    plan = plan_section(placed, target.arch, section_vaddr)
    data = encode_section(plan) if functions else b""
    return Conversion(image, target, cfi, arrangement, section, tuple(piece_entries), plan, section_vaddr, data)


def arrange_entries(image: ElfImage, cfi: Cfi) -> Arrangement:
    """Decide which FDE holds at which addresses."""
    ranges = [Range(entry.fde.pc_begin_vaddr, entry.fde.pc_range, entry.program.number) for entry in cfi.entries]
    return arrange(ranges, image.holds_code)


def _split(function: Function, target: Target) -> tuple[Function, ...]:
    """Split a function whose rows version 3 cannot count."""
    body = function.body
    if target.version < SFRAME_VERSION_3 or len(body.rows) <= V3_MAX_FRES:
        return (function,)
    starts = (*split_points(body, V3_MAX_FRES), function.size)
    return tuple(
        Function(function.start_vaddr + start, end - start, cut(body, start, end)) for start, end in pairwise(starts)
    )


def _as_placed(section: Section, image: ElfImage) -> Section:
    """Give an object's functions the addresses that the raw section shows: as if every section lay at 0."""
    if not image.is_relocatable:
        return section
    functions = tuple(f._replace(start_vaddr=image.place(f.start_vaddr).offset) for f in section.functions)
    return section._replace(functions=functions)
