# SPDX-License-Identifier: Apache-2.0
"""The `.sframe` section that GNU as and ld would make of a file's sources, in bytes.

Every FDE has rows of its own, the FRE type follows the function's size, equal rows are repeated, and ld adds functions
for the PLT sections that it writes. Version 1 is laid out as by binutils 2.40, 2 as by 2.44, 3 as by 2.46 and later.
What the bytes of a file cannot show is not modelled: assembly that spells plain instructions with `.cfi_escape`, or
`.eh_frame` in bytes, counts as if it had used directives, and every object is taken to have been assembled that way.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.ranges import Span, holder_of, united
from cfi2sframe.gnu.assembler import Chunks, GasModel, cut
from cfi2sframe.gnu.rows import Gas, GasFunction
from cfi2sframe.reasons import DropReason
from cfi2sframe.report.size.records import ROWS_CLASSES, Layout, Parts, rows_class
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import Cfi, CfiEntry
    from cfi2sframe.elf.image import ElfImage

#: The alignment to which GNU as pads the section of an s390x object.
_S390X_OBJECT_ALIGNMENT: Final = 8
_PLT_SECTIONS: Final = (".plt", ".plt.sec", ".plt.got")
#: Bytes of the first block of .plt.
_FIRST_BLOCK_SIZE: Final = {"AMD64": 16, "s390x": 32}


class _Function(NamedTuple):
    """A function as laid out: its rows, and the bytes of their start fields."""

    gas: GasFunction
    start_size: int
    is_pcmask: bool = False


def gnu_layouts(image: ElfImage, cfi: Cfi, code_map: CodeMap) -> dict[int, Layout]:
    """Return the layout that GNU tools would give a file's section, by version."""
    versions = range(image.arch.first_version, s.SFRAME_VERSION_3 + 1)
    models = [GasModel(Gas(image.arch, version)) for version in versions]
    programs = _Programs(image.arch)
    uses: Counter[tuple[int, int]] = Counter()
    for entry in _entries(image, cfi, code_map):
        uses[programs.number_of(entry.fde.cie, entry.fde.instructions), start_size(entry.fde.pc_range)] += 1
    layouts = {}
    for version, model in zip(versions, models, strict=True):
        functions = [model.assemble(cie, chunks) for cie, chunks in programs.programs]
        counts: Counter[_Function] = Counter()
        left_out = 0
        for (number, width), count in uses.items():
            function = functions[number]
            if function is None:
                left_out += count
            else:
                counts[_Function(function, width)] += count
        counts.update(_plt_functions(image, version))
        layouts[version] = _add_up(image, version, counts, left_out)
    return layouts


class _Programs:
    """The distinct programs of a file, numbered and cut."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.programs: list[tuple[DwarfCie, Chunks | None]] = []
        self._numbers: dict[tuple[int, bytes], int] = {}

    def number_of(self, cie: DwarfCie, instructions: bytes) -> int:
        # Equal CIEs of a section are one object, and the list keeps it alive.
        key = (id(cie), instructions)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.programs)
            self.programs.append((cie, cut(cie, instructions, self.arch)))
        return number


def start_size(function_size: int) -> int:
    """Return the bytes of a row's start in a function of that many bytes."""
    return 1 if function_size < 1 << 8 else 2 if function_size < 1 << 16 else 4


def _entries(image: ElfImage, cfi: Cfi, code_map: CodeMap) -> Iterator[CfiEntry]:
    """Yield the FDEs that came from an assembler: not those of ld for its PLT, nor of code that ld threw away."""
    dropped = code_map.arrangement.dropped
    plt = united((p.vaddr, p.end_vaddr) for name in _PLT_SECTIONS for p in image.sections_named(name))
    for number, entry in enumerate(cfi.entries):
        start = entry.fde.pc_begin_vaddr
        if dropped.get(number) is DropReason.DISCARDED or holder_of(plt, Span(start, start + 1)) is not None:
            continue
        yield entry


def _plt_functions(image: ElfImage, version: int) -> Iterator[_Function]:
    """Yield the functions that ld adds for its PLT sections."""
    first_size = _FIRST_BLOCK_SIZE.get(image.arch.name)
    if image.is_relocatable or first_size is None or (version < s.SFRAME_VERSION_3 and image.arch.pads_ra):
        return
    if not any(image.sections_named(".dynamic")):
        # Stubs for the IFUNCs of a static program are described by nothing.
        return
    rows = 1 if image.arch.pads_ra else 2
    for section in image.sections_named(".plt"):
        yield _plt_function(section.size, rows, is_pcmask=False)
        if section.size > first_size:
            yield _plt_function(section.size, rows, is_pcmask=True)
    if version == s.SFRAME_VERSION_1:
        # The linker of version 1 takes .plt.sec for another .plt, a short one, and knows nothing of .plt.got.
        for _ in image.sections_named(".plt.sec"):
            yield _plt_function(0, 2, is_pcmask=False)
            yield _plt_function(0, 1, is_pcmask=True)
    elif not image.arch.pads_ra:
        for name in (".plt.sec", ".plt.got"):
            for section in image.sections_named(name):
                yield _plt_function(section.size, 1, is_pcmask=True)


def _plt_function(section_size: int, row_count: int, *, is_pcmask: bool) -> _Function:
    """Return a function of ld's; it chooses the FRE type by the section, for the first block too."""
    gas = GasFunction(row_count, is_flexible=False, word_sizes=((1, row_count),))
    return _Function(gas, start_size(section_size), is_pcmask)


def _add_up(image: ElfImage, version: int, counts: Counter[_Function], left_out: int) -> Layout:
    rows: Counter[int] = Counter()
    per_function: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for (gas, width, is_pcmask), count in counts.items():
        for words, number in gas.word_sizes:
            rows[width + 1 + words] += number * count
        per_function[rows_class(gas.row_count)] += count
        kinds["pcmask" if is_pcmask else "flexible" if gas.is_flexible else "default"] += count
    functions = sum(counts.values())
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    parts = Parts(
        header=s.HEADER_SIZE,
        function_table=functions * s.FDE_SIZE[version],
        attributes=functions * attribute_size,
        rows=sum(size * number for size, number in rows.items()),
        padding=0,
    )
    if image.is_relocatable and image.arch.pads_ra:
        parts = parts._replace(padding=-parts.total % _S390X_OBJECT_ALIGNMENT)
    return Layout(
        parts,
        default_count=kinds["default"],
        flexible_count=kinds["flexible"],
        pcmask_count=kinds["pcmask"],
        left_out_count=left_out,
        row_count=rows.total(),
        row_sizes=dict(sorted(rows.items())),
        rows_per_function={name: n for name in ROWS_CLASSES if (n := per_function[name])},
    )
