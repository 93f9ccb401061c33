# SPDX-License-Identifier: Apache-2.0
"""The functions and rows of the `.sframe` section that GNU as and ld would make of a file's sources.

Every FDE has rows of its own, the FRE type follows the function's size, equal rows are repeated, and ld adds functions
for the PLT sections that it writes. Version 1 is laid out as by binutils 2.40, 2 as by 2.44, 3 as by 2.46 and later.
The model cannot see what the bytes of a file do not show: assembly that spells plain instructions with `.cfi_escape`,
or `.eh_frame` in bytes, counts as if it used directives, and every object counts as assembled with `--gsframe`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.elf.ranges import Span, holder_of, united
from cfi2sframe.gnu.assembler import Chunks, GasModel, cut
from cfi2sframe.gnu.rows import GasFunction, GasTarget
from cfi2sframe.intern import IdentityMap
from cfi2sframe.reasons import DropReason
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.lookup_cost import LookupCost, lookup_cost
from cfi2sframe.sframe.model import FunctionBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import Cfi, CfiEntry
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.gnu.rows import Assembled

#: The alignment to which GNU as pads the section of an s390x object.
_S390X_OBJECT_ALIGNMENT: Final = 8
#: Why an FDE stands for no directives of its own in what GNU as would have read.
_NOT_ASSEMBLED: Final = (DropReason.DISCARDED, DropReason.BETTER_SOURCE)
_PLT_SECTIONS: Final = (".plt", ".plt.sec", ".plt.got")
#: Bytes of the first block of .plt.
_FIRST_BLOCK_SIZE: Final = {"AMD64": 16, "s390x": 32}
#: Where ld's rows for AMD64's stubs begin: in the first block, and in the others without and with a .plt.sec.
_FIRST_BLOCK_STARTS: Final[tuple[int, ...]] = (0, 6)
_BLOCK_STARTS: Final[tuple[int, ...]] = (0, 11)
_IBT_BLOCK_STARTS: Final[tuple[int, ...]] = (0, 9)


class GnuFunction(NamedTuple):
    """A function as laid out: its rows, and the bytes of each row's start field."""

    gas: GasFunction
    start_size: int
    is_pcmask: bool = False

    @property
    def row_sizes(self) -> Iterator[tuple[int, int]]:
        """Pairs of a row's size in bytes (start, info byte and data words) and the number of rows of that size."""
        return ((self.start_size + 1 + words_size, count) for words_size, count in self.gas.word_sizes)


class GnuSection(NamedTuple):
    """The section of one version. `functions` counts equal functions; the size is a multiple of `alignment` bytes."""

    functions: Mapping[GnuFunction, int]
    left_out_count: int
    alignment: int
    lookup_cost: LookupCost


class _PltFunction(NamedTuple):
    """A function that ld adds: its rows, and its code's size in bytes."""

    function: GnuFunction
    size: int
    body: FunctionBody


def gnu_sections(image: ElfImage, cfi: Cfi, code_map: CodeMap) -> dict[int, GnuSection]:
    """Return the section that GNU tools would make of a file, for each version that defines the file's ABI."""
    programs = _Programs(image.arch)
    numbers: list[int] = []
    sizes: list[int] = []
    for entry in _assembled_entries(image, cfi, code_map):
        numbers.append(programs.number_of(entry.fde.cie, entry.fde.instructions))
        sizes.append(entry.fde.pc_range)
    uses = Counter(zip(numbers, map(start_size, sizes), strict=True))
    sections = {}
    for version in range(image.arch.first_version, s.SFRAME_VERSION_3 + 1):
        model = GasModel(GasTarget(image.arch, version))
        assembled = [model.assemble(cie, chunks) for cie, chunks in programs.programs]
        functions: Counter[GnuFunction] = Counter()
        left_out_count = 0
        for (number, width), count in uses.items():
            program = assembled[number]
            if program is None:
                left_out_count += count
            else:
                functions[GnuFunction(program.function, width)] += count
        plt = tuple(_plt_functions(image, version))
        functions.update(each.function for each in plt)
        alignment = _S390X_OBJECT_ALIGNMENT if image.is_relocatable and image.arch.pads_ra else 1
        bodies = [
            None if program is None else _body_of(program, cie)
            for program, (cie, _) in zip(assembled, programs.programs, strict=True)
        ]
        cost = _lookup_cost(sizes, list(map(bodies.__getitem__, numbers)), plt)
        sections[version] = GnuSection(functions, left_out_count, alignment, cost)
    return sections


def _body_of(program: Assembled, cie: DwarfCie) -> FunctionBody:
    """Return the starts of a function's rows, which are all that the cost of look-ups depends on."""
    factor = cie.code_alignment
    starts = program.row_starts if factor == 1 else tuple([delta * factor for delta in program.row_starts])
    return FunctionBody(starts, ())


def _lookup_cost(
    sizes: Sequence[int], bodies: Sequence[FunctionBody | None], plt: Sequence[_PltFunction]
) -> LookupCost:
    """Return the cost of look-ups; functions without a body are left out."""
    kept = [(size, body) for size, body in zip(sizes, bodies, strict=True) if body is not None]
    kept += [(each.size, each.body) for each in plt]
    return lookup_cost([size for size, _ in kept], [body for _, body in kept])


class _Programs:
    """The distinct programs of a file, numbered and cut into chunks."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.programs: list[tuple[DwarfCie, Chunks | None]] = []
        self._numbers: IdentityMap[DwarfCie, dict[bytes, int]] = IdentityMap(lambda _: {})

    def number_of(self, cie: DwarfCie, instructions: bytes) -> int:
        numbers = self._numbers[cie]
        number = numbers.get(instructions)
        if number is None:
            number = numbers[instructions] = len(self.programs)
            self.programs.append((cie, cut(cie, instructions, self.arch)))
        return number


def start_size(function_size: int) -> int:
    """Return the bytes of a row's start field in a function of that many bytes."""
    return 1 if function_size < 1 << 8 else 2 if function_size < 1 << 16 else 4


def _assembled_entries(image: ElfImage, cfi: Cfi, code_map: CodeMap) -> Iterator[CfiEntry]:
    """Yield the FDEs that came from an assembler: not those of ld for its PLT, nor of code that ld discarded.

    A function that two sources describe counts once, and one without CFI not at all.
    """
    dropped = code_map.dropped
    plt = united((p.vaddr, p.end_vaddr) for name in _PLT_SECTIONS for p in image.sections_named(name))
    # What is derived comes last.
    for number, entry in zip(range(cfi.derived_numbers.start), cfi.entries, strict=False):
        start = entry.fde.pc_begin_vaddr
        # Go's linker wrote Go's table.
        is_assembled = dropped.get(number) not in _NOT_ASSEMBLED and not isinstance(entry.section, RowSection)
        if not is_assembled or holder_of(plt, Span(start, start + 1)) is not None:
            continue
        yield entry


def _plt_functions(image: ElfImage, version: int) -> Iterator[_PltFunction]:
    """Yield the functions that ld adds for its PLT sections."""
    first_size = _FIRST_BLOCK_SIZE.get(image.arch.name)
    if image.is_relocatable or first_size is None or (version < s.SFRAME_VERSION_3 and image.arch.pads_ra):
        return
    if not any(image.sections_named(".dynamic")):
        # ld describes no stubs for the IFUNCs of a static program.
        return
    has_second_plt = any(image.sections_named(".plt.sec"))
    first_starts, starts = _FIRST_BLOCK_STARTS, _IBT_BLOCK_STARTS if has_second_plt else _BLOCK_STARTS
    if image.arch.pads_ra:
        first_starts, starts = (0,), (0,)
    for section in image.sections_named(".plt"):
        yield _plt_function(section.size, first_starts, min(first_size, section.size))
        if section.size > first_size:
            yield _plt_function(section.size, starts, section.size - first_size, first_size)
    if version == s.SFRAME_VERSION_1:
        # ld 2.40 describes .plt.sec as if it were another, short .plt, and ignores .plt.got.
        for section in image.sections_named(".plt.sec"):
            yield _plt_function(0, _FIRST_BLOCK_STARTS, first_size)
            yield _plt_function(0, (0,), section.size, first_size)
    elif not image.arch.pads_ra:
        for name in (".plt.sec", ".plt.got"):
            for section in image.sections_named(name):
                yield _plt_function(section.size, (0,), section.size, first_size)


def _plt_function(section_size: int, starts: tuple[int, ...], size: int, repeat_size: int = 0) -> _PltFunction:
    """Return a function of ld's, which chooses the FRE type by the section's size, also for the first block.

    `size` is the function's own; `repeat_size` that of the blocks of a PCMASK function.
    """
    gas = GasFunction(len(starts), is_flexible=False, word_sizes=((1, len(starts)),))
    function = GnuFunction(gas, start_size(section_size), is_pcmask=bool(repeat_size))
    return _PltFunction(function, size, FunctionBody(starts, (), repeat_size=repeat_size))
