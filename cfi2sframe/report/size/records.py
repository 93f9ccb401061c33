# SPDX-License-Identifier: Apache-2.0
"""The records of a size report. Every format is rendered from them, and every total is a sum of them.

Sizes count bytes. The size of a part that does not exist is 0; what a version does not define is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cfi2sframe.conversion import Level
    from cfi2sframe.sframe.lookup_cost import LookupCost

#: The level that files are measured at by default (see `conversion.Options`).
DEFAULT_LEVEL: Final[Level] = 2

#: Who lays a section out.
Maker = Literal["cfi2sframe", "gnu"]
MAKERS: Final[tuple[Maker, ...]] = ("cfi2sframe", "gnu")


def by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts in descending order, equal ones in the order of their names."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def quotient(part: float, whole: float, scale: float = 1.0) -> float | None:
    """Return scale * part / whole, or None when `whole` is 0."""
    return scale * part / whole if whole else None


class Parts(NamedTuple):
    """The bytes of a section by part; they add up to its size. Only version 3 has `attributes`."""

    header: int = 0
    function_table: int = 0
    attributes: int = 0
    rows: int = 0
    padding: int = 0

    @property
    def total(self) -> int:
        """The section's size."""
        return sum(self)


class SectionSizes(NamedTuple):
    """A section of one version; of size 0 when it would have no function.

    It has `default_count` + `flexible_count` + `pcmask_count` functions; `left_out_count` have no record. `row_sizes`
    counts the stored rows by their size in bytes, which add up to `parts.rows`; `rows_per_function` counts functions by
    the class of their row count (see `row_classes`). `row_count` counts the rows of every function, also those that
    functions share. `lookup_cost` is what readers pay for a look-up; that of several sections is as `add_costs` has it.
    `code_count` functions without CFI are described from their instructions, some of them as parts of other records.
    """

    parts: Parts
    default_count: int
    flexible_count: int
    pcmask_count: int
    left_out_count: int
    row_count: int
    row_sizes: dict[int, int]
    rows_per_function: dict[str, int]
    lookup_cost: LookupCost
    code_count: int = 0

    @property
    def size(self) -> int:
        """The section's size."""
        return self.parts.total

    @property
    def function_count(self) -> int:
        """The number of functions in the section."""
        return self.default_count + self.flexible_count + self.pcmask_count

    @property
    def stored_row_count(self) -> int:
        """The number of rows in the section's bytes, where shared rows are stored once."""
        return sum(self.row_sizes.values())

    @property
    def mean_row_count(self) -> float | None:
        """Rows per function; None without functions."""
        return quotient(self.row_count, self.function_count)


class Ratios(NamedTuple):
    """A section's size to the sizes of what a file has; None for what it does not have."""

    to_cfi: float | None
    to_cfi_and_hdr: float | None
    to_text: float | None
    to_file: float | None


class CfiSizes(NamedTuple):
    """Sizes of a file and of some of its sections.

    `cfi` counts all CFI that was read, with `.gopclntab` and what instructions say as the `.debug_frame` that says the
    same. `sframe` is the section that the file already has. `code_padding` is alignment padding, which functions reach
    over.
    """

    file: int = 0
    text: int = 0
    cfi: int = 0
    eh_frame: int = 0
    eh_frame_hdr: int = 0
    sframe: int = 0
    code_padding: int = 0

    @property
    def base(self) -> int:
        """The size that an SFrame section is compared with: the CFI and its search table."""
        return self.cfi + self.eh_frame_hdr

    def ratios(self, size: int) -> Ratios:
        """Return the ratios of a section of `size` bytes."""
        return Ratios(*(quotient(size, whole) for whole in (self.cfi, self.base, self.text, self.file)))


class VersionSizes(NamedTuple):
    """One file in one SFrame version. When the version does not define its ABI, both are None, and `refusal` tells why.

    So it is for a version that was not asked for.

    `left_out` counts the functions that cfi2sframe leaves out, by reason; it describes `in_parts_count` in part.
    """

    version: int
    cfi2sframe: SectionSizes | None
    gnu: SectionSizes | None
    left_out: dict[str, int]
    in_parts_count: int
    refusal: str = ""

    def section(self, maker: Maker) -> SectionSizes | None:
        """Return the section as `maker` lays it out."""
        return self.cfi2sframe if maker == "cfi2sframe" else self.gnu


class FunctionSize(NamedTuple):
    """The bytes of one function: its FDE without its CIE, and its SFrame records and rows.

    Rows that other functions share count in full. `address` is absolute; in an object, it is an offset in `section`.
    """

    file: str
    name: str
    section: str
    address: int
    code_size: int
    cfi_size: int
    sframe_size: int

    @property
    def excess(self) -> int:
        """By how many bytes the function is larger in SFrame than its FDE."""
        return self.sframe_size - self.cfi_size


class NamedFunctions(NamedTuple):
    """The functions that a report names: the largest in SFrame, and those that exceed their FDE by most.

    Of `described_count` functions, `larger_count` are larger in SFrame than their FDE.
    """

    described_count: int
    larger_count: int
    costliest: tuple[FunctionSize, ...]
    larger: tuple[FunctionSize, ...]


class FileSizes(NamedTuple):
    """One file: its sections, and what each version would be. `source` names the CFI section that was read.

    `sframe_version` is that of the section that the file already has, None without.
    """

    name: str
    arch: str
    kind: Literal["object", "linked"]
    source: str
    sizes: CfiSizes
    sframe_version: int | None
    fde_count: int
    versions: tuple[VersionSizes, ...]
    functions: NamedFunctions

    def version(self, number: int) -> VersionSizes:
        """Return one version's sizes."""
        return next(v for v in self.versions if v.version == number)

    def section(self, number: int, maker: Maker = "cfi2sframe") -> SectionSizes | None:
        """Return the section of a version, None when the version does not define the file's ABI."""
        return self.version(number).section(maker)

    def ratio(self, number: int, maker: Maker = "cfi2sframe") -> float | None:
        """Return a section's size to the CFI with its search table, or None when either does not exist."""
        section = self.section(number, maker)
        return None if section is None else quotient(section.size, self.sizes.base)


class Failure(NamedTuple):
    """A file that could not be measured, and why. `is_expected`: the file has nothing to measure."""

    name: str
    reason: str
    is_expected: bool = False


class VersionTotal(NamedTuple):
    """The sums of one version over the files whose ABI it defines; `sizes` and `fde_count` are of the same files."""

    version: int
    file_count: int
    fde_count: int
    sizes: CfiSizes
    cfi2sframe: SectionSizes
    gnu: SectionSizes
    left_out: dict[str, int]
    in_parts_count: int

    def section(self, maker: Maker) -> SectionSizes:
        """Return the sum of the sections as `maker` lays them out."""
        return self.cfi2sframe if maker == "cfi2sframe" else self.gnu

    def ratio(self, maker: Maker = "cfi2sframe") -> float | None:
        """Return the size to the CFI with its search table, None without CFI."""
        return quotient(self.section(maker).size, self.sizes.base)

    @property
    def growth_percent(self) -> float | None:
        """The sections that cfi2sframe writes, in percent of the files."""
        return quotient(self.cfi2sframe.size, self.sizes.file, 100)

    @property
    def left_out_percent(self) -> float | None:
        """The FDEs that cfi2sframe leaves out, in percent of all FDEs."""
        return quotient(self.cfi2sframe.left_out_count, self.fde_count, 100)


class Totals(NamedTuple):
    """The sums over all files that could be measured."""

    file_count: int
    sizes: CfiSizes
    fde_count: int
    versions: tuple[VersionTotal, ...]

    def version(self, number: int) -> VersionTotal:
        """Return one version's sum."""
        return next(v for v in self.versions if v.version == number)


class FileGroup(NamedTuple):
    """The files of a folder, added up. `larger_count` functions are larger in SFrame than their FDE."""

    name: str
    totals: Totals
    larger_count: int


class Folders(NamedTuple):
    """All files by folder: groups that are sorted and cut, and the number of those that were cut off."""

    groups: tuple[FileGroup, ...]
    omitted_count: int = 0


class SizeReport(NamedTuple):
    """A whole report.

    `files` are sorted and cut to the number that was asked for; `omitted_count` more were measured, which `totals` and
    `functions` include. `version` is the one that the order of the files and `functions` are about. `folders` are there
    if they were asked for. `level` is that of linked files.
    """

    version: int
    files: tuple[FileSizes, ...]
    omitted_count: int
    totals: Totals
    functions: NamedFunctions
    failures: tuple[Failure, ...]
    folders: Folders | None = None
    level: Level = DEFAULT_LEVEL


class NumberChange(NamedTuple):
    """A number before and after."""

    old: int
    new: int

    @property
    def difference(self) -> int:
        """By how much the number grew."""
        return self.new - self.old

    @property
    def percent(self) -> float | None:
        """By how many percent the number grew; None from 0."""
        return quotient(self.difference, self.old, 100)


class Pair(NamedTuple):
    """A file before and after; None when it does not exist there."""

    name: str
    old: FileSizes | None
    new: FileSizes | None

    def sizes(self, version: int, maker: Maker = "cfi2sframe") -> NumberChange:
        """Return the section's size before and after, 0 without a section."""
        sections = [None if file is None else file.section(version, maker) for file in (self.old, self.new)]
        return NumberChange(*(0 if section is None else section.size for section in sections))

    def change(self, version: int) -> int:
        """Return by how many bytes the section grew."""
        return self.sizes(version).difference

    @property
    def base(self) -> NumberChange:
        """The size of the CFI and its search table before and after, 0 without a file."""
        return NumberChange(*(0 if file is None else file.sizes.base for file in (self.old, self.new)))

    def verdict(self, version: int) -> str:
        """Return what became of the file, in one word."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        change = self.change(version)
        return "grew" if change > 0 else "shrank" if change < 0 else "same"


class SizeComparison(NamedTuple):
    """Two reports side by side, file by file; `totals` are before and after, of all pairs."""

    version: int
    pairs: tuple[Pair, ...]
    omitted_count: int
    totals: tuple[Totals, Totals]
    failures: tuple[Failure, ...]
    level: Level = DEFAULT_LEVEL

    def section_change(self, version: int, maker: Maker) -> NumberChange:
        """Return the size of all sections of a version before and after."""
        return NumberChange(*(totals.version(version).section(maker).size for totals in self.totals))

    @property
    def base(self) -> NumberChange:
        """The size of all CFI and search tables before and after."""
        return NumberChange(*(totals.sizes.base for totals in self.totals))
