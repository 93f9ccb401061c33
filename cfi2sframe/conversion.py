# SPDX-License-Identifier: Apache-2.0
"""The one place that strings the stages together: an image in, a section and an account of every FDE out."""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import compress, count, pairwise
from operator import ne, sub
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from cfi2sframe.budget import Budget
from cfi2sframe.code_map import CodeMap, map_code
from cfi2sframe.dwarf.programs import Cfi, CfiEntry, load_cfi
from cfi2sframe.errors import BudgetError, InputError, RequestError
from cfi2sframe.lower import Skip, Target
from cfi2sframe.overlaps import Pieces, cut, spliced, split_points
from cfi2sframe.sframe.constants import SFRAME_VERSION_3, V3_MAX_FRES, VERSIONS
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import SectionPlan, move_plan, plan_section
from cfi2sframe.sframe.model import Function, Section
from cfi2sframe.sframe.rows import words_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FrameState, FunctionBody

#: Where a linked file's section is assumed to lie when nobody says: the next boundary of the largest common page size.
_SECTION_BOUNDARY: Final = 0x10000


class Options(NamedTuple):
    """What the caller may choose.

    `section_vaddr` None: the first 64 KiB boundary past the last PT_LOAD (objects: 0). `with_stubs`: describe PLT
    stubs by their instructions. `level`: 0 gives every function rows of its own, 1 shares equal ones, 2 also cuts and
    joins functions so that fewer bytes do; None is 1 in little-endian sections, 0 in big-endian ones (libsframe flips
    those in place, function by function). Objects are always at 0: GNU ld cannot merge shared rows.
    """

    version: int = SFRAME_VERSION_3
    errata: int = 2
    source: CfiKind | None = None
    section_vaddr: int | None = None
    all_keep_frame_pointer: bool = False
    with_stubs: bool = True
    level: Literal[0, 1, 2] | None = None


#: What each field may be, but for `section_vaddr`.
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "version": VERSIONS,
    "errata": (0, 1, 2),
    "source": ("eh_frame", "debug_frame", None),
    "all_keep_frame_pointer": (False, True),
    "with_stubs": (False, True),
    "level": (0, 1, 2, None),
}
_MAX_VADDR: Final = (1 << 64) - 1


def check_options(options: Options) -> None:
    """Raise `RequestError` when a field is none of the values that it may have, or of another type."""
    # Not as fields: compiled, these are of their types, or a TypeError.
    values: dict[str, object] = options._asdict()
    for name, choices in _CHOICES.items():
        value = values[name]
        # True equals 1, and 2.0 equals 2.
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            *first, last = map(repr, choices)
            raise RequestError(f"{name} is {value!r}; it has to be {', '.join(first)} or {last}")
    vaddr = values["section_vaddr"]
    if vaddr is not None and not (type(vaddr) is int and 0 <= vaddr <= _MAX_VADDR):
        raise RequestError(f"section_vaddr is {vaddr!r}; it has to be an address from 0 to 0x{_MAX_VADDR:x} or None")


class Conversion(NamedTuple):
    """The section made of an image, and what became of every FDE.

    `function_entries` gives for each function of `section` the number of its FDE in `cfi.entries`, None for stubs; at
    level 2, where a function may reach over several FDEs and stubs, that of the one it begins in. `section_vaddr` is
    what starts are relative to. `data` is empty when there is nothing to say.
    """

    image: ElfImage
    target: Target
    cfi: Cfi
    code_map: CodeMap
    section: Section
    function_entries: tuple[int | None, ...]
    plan: SectionPlan
    section_vaddr: int
    data: bytes

    @property
    def shares(self) -> bool:
        """Whether functions refer to rows that are stored once for several."""
        return len(self.plan.bodies) < len(self.plan.sizes)

    @property
    def left_out(self) -> tuple[tuple[CfiEntry, Skip], ...]:
        """The functions that this version cannot say, with their reasons, in the order of the FDEs."""
        if not self.cfi.skipped:
            return ()
        gone = self.code_map.arrangement.dropped.keys() | self.code_map.replaced
        left_out = []
        for number, program in enumerate(self.cfi.entries.programs):
            result = program.result
            if isinstance(result, Skip) and number not in gone:
                left_out.append((self.cfi.entries[number], result))
        return tuple(left_out)

    @property
    def is_whole(self) -> bool:
        """Whether every FDE and every stub is described."""
        return not (self.left_out or self.cfi.failures or self.code_map.stubs.left_out)


def default_section_vaddr(image: ElfImage) -> int:
    """Return where a section is assumed to lie: past the last PT_LOAD; 0 in an object."""
    if image.is_relocatable:
        return 0
    return -(-image.end_of_segments() // _SECTION_BOUNDARY) * _SECTION_BOUNDARY


def convert_image(image: ElfImage, options: Options = Options()) -> Conversion:
    """Convert an image's CFI to an SFrame section.

    Raises `InputError` when the CFI cannot be used, `RequestError` when an option has no meaning, or when the version,
    its fields or its flags cannot hold what was asked for.
    """
    check_options(options)
    target = Target(image.arch, options.version, options.errata)
    if options.all_keep_frame_pointer and options.version >= SFRAME_VERSION_3:
        raise RequestError("version 3 has no frame pointer flag; versions 1 and 2 have it")
    cfi = load_cfi(image, target, options.source)
    if not cfi.entries and cfi.failures:
        first = cfi.failures[0].failure.error
        raise InputError(f"no usable FDE; the first is damaged: {first.reason}", first.where, first.offset)
    code_map = map_code(image, cfi, options.version, with_stubs=options.with_stubs)
    section_vaddr = default_section_vaddr(image) if options.section_vaddr is None else options.section_vaddr
    section, entries = make_section(image, target, cfi, code_map, all_keep_frame_pointer=options.all_keep_frame_pointer)
    level = _level(image, options)
    if level >= 2:
        section, entries = _split_to_share(section, entries, image)
    plan = plan_section(_as_placed(section, image), image.arch, section_vaddr, share=level >= 1)
    data = encode_section(plan) if section.starts else b""
    return Conversion(image, target, cfi, code_map, section, entries, plan, section_vaddr, data)


def _level(image: ElfImage, options: Options) -> int:
    if image.is_relocatable:
        # GNU ld (2.40 to 2.47) makes room for an input's bytes and then writes every function's rows: shared ones would
        # overflow it, and what follows .sframe in the output would be overwritten.
        return 0
    if options.level is None:
        return 1 if image.byte_order == "<" else 0
    return options.level


def _split_to_share(
    section: Section, entries: tuple[int | None, ...], image: ElfImage
) -> tuple[Section, tuple[int | None, ...]]:
    """Cut and join functions into ranges whose rows recur; leave them as they are where that would take too much.

    An account of its own says how much that is, so that the bytes depend on nothing but the file.
    """
    from cfi2sframe.sframe.splitting import split_functions

    def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - a callback's plain signature
        return words_size(state, image.arch, is_flexible=is_flexible)

    try:
        ranges = split_functions(section.functions, section.version, size_of, Budget(len(image.data)))
    except BudgetError:
        return section, entries
    return section.with_functions([function for function, _ in ranges]), tuple([entries[n] for _, n in ranges])


def place_again(conversion: Conversion, section_vaddr: int) -> Conversion:
    """Return the conversion with its section at another address.

    An object's functions keep the addresses of the image's layout, where no two are the same.
    Raises `RequestError` when a start does not fit.
    """
    plan = move_plan(conversion.plan, conversion.section, section_vaddr)
    return conversion._replace(plan=plan, section_vaddr=section_vaddr, data=encode_section(plan))


def make_section(
    image: ElfImage, target: Target, cfi: Cfi, code_map: CodeMap, *, all_keep_frame_pointer: bool = False
) -> tuple[Section, tuple[int | None, ...]]:
    """Return the logical section, at the image's addresses, and the FDE number of each of its functions."""
    functions = _fde_functions(image, target, cfi, code_map)
    if code_map.stubs.functions:
        places = [(bisect_left(functions.starts, stub.start_vaddr), stub) for stub in code_map.stubs.functions]
        functions = functions.replaced([(place, place, [stub], None) for place, stub in places])
    section = Section(
        target.version,
        target.arch.abi_id,
        tuple(functions.starts),
        tuple(functions.sizes),
        tuple(functions.bodies),
        is_sorted=not image.is_relocatable,
        start_is_pcrel=target.start_is_pcrel,
        all_keep_frame_pointer=all_keep_frame_pointer,
    )
    return section, tuple(functions.entries)


class _Functions(NamedTuple):
    """Functions as columns, with the number of each one's FDE; None for stubs."""

    starts: Sequence[int]
    sizes: Sequence[int]
    bodies: Sequence[FunctionBody]
    entries: Sequence[int | None]

    def replaced(self, changes: Sequence[tuple[int, int, Sequence[Function], int | None]]) -> _Functions:
        """Return others, of one FDE, in place of those from `first` up to `last`, for ascending changes."""
        return _Functions(
            spliced(self.starts, [(first, last, [f.start_vaddr for f in those]) for first, last, those, _ in changes]),
            spliced(self.sizes, [(first, last, [f.size for f in those]) for first, last, those, _ in changes]),
            spliced(self.bodies, [(first, last, [f.body for f in those]) for first, last, those, _ in changes]),
            spliced(self.entries, [(first, last, [entry] * len(those)) for first, last, those, entry in changes]),
        )


def _fde_functions(image: ElfImage, target: Target, cfi: Cfi, code_map: CodeMap) -> _Functions:
    """Return the functions that FDEs make: nearly all are one piece, of which the whole program holds."""
    pieces = code_map.pieces
    if image.is_relocatable:
        # Linkers expect an object's functions in the order of its source, linked files are sorted by address.
        pieces = Pieces.of(sorted(pieces.records))
    numbers, starts, ends = pieces
    sizes = list(map(sub, ends, starts))
    programs = cfi.entries.programs
    results = [programs[number][3] for number in numbers]
    max_row_count = V3_MAX_FRES if target.version >= SFRAME_VERSION_3 else sys.maxsize
    changes: list[tuple[int, int, Sequence[Function], int | None]] = []
    for place in _unusual(cfi, numbers, sizes, results, max_row_count):
        result, size, number = results[place], sizes[place], numbers[place]
        if isinstance(result, Skip):
            changes.append((place, place + 1, (), None))
            continue
        start = starts[place]
        delta = start - cfi.entries.starts[number]
        body = cut(result, delta, delta + size)
        parts = [
            Function(start + first, last - first, cut(body, first, last))
            for first, last in pairwise((*split_points(body, max_row_count), size))
        ]
        changes.append((place, place + 1, parts, number))
    # What is no body has been found above, and goes.
    functions = _Functions(starts, sizes, cast("list[FunctionBody]", results), numbers)
    return functions.replaced(changes) if changes else functions


def _unusual(
    cfi: Cfi, numbers: Sequence[int], sizes: Sequence[int], results: Sequence[FunctionBody | Skip], max_row_count: int
) -> list[int]:
    """Return the places of the pieces that are not whole, whose program cannot be said, or has too many rows."""
    places = set(compress(count(), map(ne, sizes, map(cfi.entries.sizes.__getitem__, numbers))))
    if cfi.skipped:
        skipped = {id(program.result) for program in cfi.skipped}
        places.update(compress(count(), map(skipped.__contains__, map(id, results))))
    for place in compress(count(), map(max_row_count.__lt__, sizes)):
        # A row has a byte at least; these may have too many.
        result = results[place]
        if not isinstance(result, Skip) and len(result.starts) > max_row_count:
            places.add(place)
    return sorted(places)


def _as_placed(section: Section, image: ElfImage) -> Section:
    """Give an object's functions the addresses that the raw section shows: as if every section lay at 0."""
    if not image.is_relocatable:
        return section
    return section._replace(starts=tuple([image.place(start).offset for start in section.starts]))
