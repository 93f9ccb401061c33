# SPDX-License-Identifier: Apache-2.0
"""Conversion, one line for each stage: from an image to a section and the outcome of every FDE.

bytes -> CIEs and FDEs -> rows                                      read_cfi
      -> frame rows, or the reason why not                          lower_programs, results_by_fde
      -> the owner of an address: an FDE, a stub or padding         map_code
      -> pieces: addresses with rows, or the reason why not         pieces_of
      -> functions, over padding -> ranges (-O2)                    place_functions, make_ranges
      -> bytes                                                      store_rows, write_section
"""

from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import DEFAULT_ERRATA
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.functions import Functions, place_functions
from cfi2sframe.conversion.lower import Target, check_target, lower_programs
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.conversion.owners import map_code
from cfi2sframe.conversion.pieces import Piece, fates_of, pieces_of, results_by_fde
from cfi2sframe.conversion.sources import Cfi, find_cfi, read_programs
from cfi2sframe.dwarf.fdes import CfiEntry, FdeIndex
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import Section
from cfi2sframe.sframe.write import RowStore, store_rows, write_section
from cfi2sframe.stubs import StubSkip
from cfi2sframe.text import counted
from cfi2sframe.why import Why

#: Alignment of the address that a linked file's section is assumed to have: the largest common page size.
_SECTION_BOUNDARY: Final = 0x10000


class Conversion(NamedTuple):
    """The section made of an image, and the pieces of code that it was made of; `account` counts these."""

    image: ElfImage
    target: Target
    """The ABI and version of the section."""
    cfi: Cfi
    """The CFI read. Functions derived from instructions are its last entries, and no count of FDEs includes them."""
    pieces: tuple[Piece, ...]
    """Ascending, without overlap: what FDEs, derived functions and stubs own."""
    fates: tuple[Fate, ...]
    """The fate of each of `cfi.entries`, which reports and conditions go by."""
    padding: tuple[Span, ...]
    """It follows FDEs, whose functions reach over it."""
    stubs_left_out: tuple[StubSkip, ...]
    section: Section
    """With virtual addresses of the image. At level 2, its functions may begin and end in the middle of pieces."""
    rows: RowStore
    """The section's rows as bytes."""
    section_vaddr: int
    """The address that `data` is for."""
    data: bytes
    """All of the section's bytes: none if it would have no function."""

    def __repr__(self) -> str:
        made = f"{counted(len(self.section.starts), 'function')}, {counted(len(self.data), 'byte')}"
        left = [
            f"{counted(count, 'FDE')} {what}"
            for count, what in ((len(self.skips), "left out"), (len(self.in_parts), "in parts"))
            if count
        ]
        return f"<Conversion of {self.image.name}: version {self.target.version}, {', '.join([made, *left])}>"

    @property
    def skips(self) -> tuple[tuple[CfiEntry, Why], ...]:
        """The FDEs that are left out, in order, each with its reason."""
        whys = {piece.origin: piece.said for piece in reversed(self.pieces) if isinstance(piece.said, Why)}
        return tuple([(entry, whys[entry.fde]) for entry in self._with_fate(Fate.LEFT_OUT)])

    @property
    def in_parts(self) -> tuple[CfiEntry, ...]:
        """The FDEs that are described in part, in order."""
        return tuple(self._with_fate(Fate.IN_PARTS))

    @property
    def described_count(self) -> int:
        """The number of FDEs with code of their own that are described from start to end."""
        return self.fates.count(Fate.DESCRIBED)

    @property
    def is_whole(self) -> bool:
        """True if every source was read, and every FDE and stub is described from start to end."""
        if self.cfi.damaged or self.cfi.unread or self.stubs_left_out:
            return False
        return not {Fate.LEFT_OUT, Fate.IN_PARTS}.intersection(self.fates)

    def piece_at(self, vaddr: int) -> Piece | None:
        """Return the piece that a virtual address is in, or None."""
        index = bisect_right(self.pieces, vaddr, key=attrgetter("start_vaddr")) - 1
        return self.pieces[index] if index >= 0 and vaddr < self.pieces[index].end_vaddr else None

    def _with_fate(self, wanted: Fate) -> list[CfiEntry]:
        return [self.cfi.entries[fde] for fde, fate in enumerate(self.fates) if fate is wanted]


def default_section_vaddr(image: ElfImage) -> int:
    """Return the virtual address that a section is assumed to have: past the last PT_LOAD; in an object 0."""
    if image.is_relocatable:
        return 0
    return -(-image.end_of_segments() // _SECTION_BOUNDARY) * _SECTION_BOUNDARY


def convert_image(
    image: ElfImage,
    options: Options = Options(),
    refused: Mapping[FdeIndex, str] = MappingProxyType({}),
    cfi: Cfi | None = None,
) -> Conversion:
    """Convert an image's CFI to an SFrame section.

    `refused` has the FDEs to leave out, each with the reason. `cfi` is the CFI of `options.source` if it was read
    before: to derive it from instructions takes much longer than all else. Raises `InputError` when the CFI cannot be
    used, and `RequestError` when an option does not exist, or the version cannot hold what it asks for.
    """
    check_options(options)
    target = Target(image.arch, options.version, DEFAULT_ERRATA if options.errata is None else options.errata)
    check_target(target)
    section_vaddr = default_section_vaddr(image) if options.section_vaddr is None else options.section_vaddr
    level: Level = 2 if options.level is None else options.level
    if image.is_relocatable:
        # GNU ld (2.40 to 2.47) reserves the size of the input, and then writes the rows of each function separately:
        # shared rows would overflow that space and overwrite what follows .sframe in the output.
        level = 0

    cfi = cfi or read_cfi(image, options.source).or_raise()
    code_map = map_code(image, cfi.entries, target.version)
    pieces = pieces_of(
        cfi.entries, results_by_fde(cfi.entries, lower_programs(cfi.programs, target), refused), code_map
    )
    functions = place_functions(pieces, code_map.padding, target.version, in_section_order=image.is_relocatable)
    section = _section_of(functions, image, target, level)
    rows = store_rows(section, image.arch, share=level > 0)
    placed = section
    if image.is_relocatable:
        # In a raw section all text sections start at 0.
        placed = section._replace(starts=tuple([image.place(start).offset for start in section.starts]))
    data = write_section(placed, image.arch, rows, section_vaddr) if functions.starts else b""
    fates = fates_of(cfi.entries, pieces, code_map.without_code)
    owned = (pieces, fates, code_map.padding, code_map.stubs.left_out)
    return Conversion(image, target, cfi, *owned, section, rows, section_vaddr, data)


def read_cfi(image: ElfImage, kind: CfiKind | None) -> Cfi:
    """Read the CFI of an image: one kind, or all (None), or all and rows from instructions ("code").

    Raises what `find_cfi`, `read_programs` and, with "code", `with_derived` raise.
    """
    cfi = read_programs(image, *find_cfi(image, kind))
    if kind == "code":
        from cfi2sframe.conversion.uncovered import with_derived

        cfi = with_derived(image, cfi)
    return cfi


def place_again(conversion: Conversion, section_vaddr: int) -> Conversion:
    """Return the conversion with its section at another virtual address.

    An object's functions get their addresses in the image's layout, where sections do not overlap, instead of offsets
    in their sections. Raises `RequestError` when a start does not fit its field.
    """
    data = write_section(conversion.section, conversion.image.arch, conversion.rows, section_vaddr)
    return conversion._replace(section_vaddr=section_vaddr, data=data)


def _section_of(functions: Functions, image: ElfImage, target: Target, level: Level) -> Section:
    """Return the logical section, with the image's addresses."""
    section = Section(
        target.version,
        target.arch.abi_id,
        *functions,
        is_sorted=not image.is_relocatable,
        start_is_pcrel=target.start_is_pcrel,
    )
    if level < 2:
        return section
    from cfi2sframe.sframe.ranges import make_ranges

    return make_ranges(section, image.arch)
