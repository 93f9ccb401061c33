# SPDX-License-Identifier: Apache-2.0
"""The records of a size report. Every format is rendered from them, and every total is a sum of them.

Sizes count bytes. A part that is not there has size 0; what a version cannot have at all is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BOUNDS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_OPEN_CLASS: Final = "65+"
#: The classes in which functions are counted by their rows.
ROWS_CLASSES: Final = ("0", "1", "2", "3", "4", "5-6", "7-8", "9-12", "13-16", "17-32", "33-64", _OPEN_CLASS)

Key = TypeVar("Key")

Maker = Literal["cfi2sframe", "gnu"]
MAKERS: Final[tuple[Maker, ...]] = ("cfi2sframe", "gnu")


def rows_class(row_count: int) -> str:
    """Return the class of a function with that many rows."""
    return next((name for name, bound in zip(ROWS_CLASSES, _BOUNDS, strict=False) if row_count <= bound), _OPEN_CLASS)


class Parts(NamedTuple):
    """Where a section's bytes go; they add up to the section. `attributes` are version 3's."""

    header: int = 0
    function_table: int = 0
    attributes: int = 0
    rows: int = 0
    padding: int = 0

    @property
    def total(self) -> int:
        """The section's size."""
        return sum(self)


class Layout(NamedTuple):
    """A section of one version; of size 0 where no function can be said.

    Functions in it are `default_count` + `flexible_count` + `pcmask_count`. `row_sizes` counts the stored rows by their
    size, so that they add up to `parts.rows`; `rows_per_function` counts functions by the class of their row count (see
    `ROWS_CLASSES`). `row_count` counts the rows of every function, also where functions share the stored ones.
    """

    parts: Parts
    default_count: int
    flexible_count: int
    pcmask_count: int
    left_out_count: int
    row_count: int
    row_sizes: dict[int, int]
    rows_per_function: dict[str, int]

    @property
    def size(self) -> int:
        """The section's size."""
        return self.parts.total

    @property
    def function_count(self) -> int:
        """The functions in the section."""
        return self.default_count + self.flexible_count + self.pcmask_count

    @property
    def stored_row_count(self) -> int:
        """The rows that take up bytes."""
        return sum(self.row_sizes.values())


class CfiSizes(NamedTuple):
    """What a file has today. `cfi` is the part that was read: `.eh_frame`, or `.debug_frame` where there is none.

    `sframe` is the section that the file holds already.
    """

    file: int = 0
    text: int = 0
    cfi: int = 0
    eh_frame: int = 0
    eh_frame_hdr: int = 0
    sframe: int = 0

    @property
    def base(self) -> int:
        """What an SFrame section is compared with: the CFI and its search table."""
        return self.cfi + self.eh_frame_hdr


class VersionSizes(NamedTuple):
    """One file in one SFrame version. Layouts are None, and `refusal` says why, where the version cannot be had.

    `left_out` counts the functions that cfi2sframe leaves out by reason.
    """

    version: int
    cfi2sframe: Layout | None
    gnu: Layout | None
    left_out: dict[str, int]
    refusal: str = ""

    def layout(self, maker: Maker) -> Layout | None:
        """Return the layout by its maker."""
        return self.cfi2sframe if maker == "cfi2sframe" else self.gnu


class FunctionSize(NamedTuple):
    """What one function costs: its FDE without its CIE, and its SFrame records and rows.

    Rows that other functions share count in full. `address` is absolute, in an object an offset in `section`.
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
        """Bytes that SFrame takes beyond the FDE."""
        return self.sframe_size - self.cfi_size


class Functions(NamedTuple):
    """The functions that a report names: the costliest, and those that cost most beyond their FDE.

    `described_count` functions were looked at, and for `larger_count` of them SFrame is larger than the FDE.
    """

    described_count: int
    larger_count: int
    costliest: tuple[FunctionSize, ...]
    larger: tuple[FunctionSize, ...]


class FileSizes(NamedTuple):
    """One file: what it has, and what each version would be. `source` names the CFI section that was read."""

    name: str
    arch: str
    kind: Literal["object", "linked"]
    source: str
    sizes: CfiSizes
    sframe_version: int | None
    fde_count: int
    versions: tuple[VersionSizes, ...]
    functions: Functions

    def version(self, number: int) -> VersionSizes:
        """Return one version's sizes."""
        return next(v for v in self.versions if v.version == number)

    def layout(self, number: int, maker: Maker = "cfi2sframe") -> Layout | None:
        """Return one layout."""
        return self.version(number).layout(maker)

    def ratio(self, number: int, maker: Maker = "cfi2sframe") -> float | None:
        """Return a layout's size to the CFI with its search table, or None where there is no such layout."""
        layout = self.layout(number, maker)
        return layout.size / self.sizes.base if layout is not None and self.sizes.base else None


class Failure(NamedTuple):
    """A file that could not be measured, and why. `is_expected`: there is nothing in it to measure."""

    name: str
    reason: str
    is_expected: bool = False


class VersionTotal(NamedTuple):
    """The sum of one version over the files that can have it; `sizes` sums what these files have today."""

    version: int
    file_count: int
    sizes: CfiSizes
    cfi2sframe: Layout
    gnu: Layout
    left_out: dict[str, int]

    def layout(self, maker: Maker) -> Layout:
        """Return the sum by its maker."""
        return self.cfi2sframe if maker == "cfi2sframe" else self.gnu

    def ratio(self, maker: Maker = "cfi2sframe") -> float | None:
        """Return the size to the CFI with its search table."""
        return self.layout(maker).size / self.sizes.base if self.sizes.base else None


class Totals(NamedTuple):
    """The sum over all files that could be measured."""

    file_count: int
    sizes: CfiSizes
    fde_count: int
    versions: tuple[VersionTotal, ...]

    def version(self, number: int) -> VersionTotal:
        """Return one version's sum."""
        return next(v for v in self.versions if v.version == number)


def add_layouts(layouts: Iterable[Layout]) -> Layout:
    """Add layouts up, field by field."""
    every = tuple(layouts)
    per_function = add_counts(layout.rows_per_function for layout in every)
    return Layout(
        Parts(*(sum(column) for column in zip(Parts(), *(layout.parts for layout in every), strict=True))),
        default_count=sum(layout.default_count for layout in every),
        flexible_count=sum(layout.flexible_count for layout in every),
        pcmask_count=sum(layout.pcmask_count for layout in every),
        left_out_count=sum(layout.left_out_count for layout in every),
        row_count=sum(layout.row_count for layout in every),
        row_sizes=dict(sorted(add_counts(layout.row_sizes for layout in every).items())),
        rows_per_function={name: n for name in ROWS_CLASSES if (n := per_function.get(name))},
    )


def add_counts(parts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    """Add counts up by their keys."""
    result: dict[Key, int] = {}
    for part in parts:
        for key, number in part.items():
            result[key] = result.get(key, 0) + number
    return result


def add_sizes(sizes: Iterable[CfiSizes]) -> CfiSizes:
    """Add up what files have."""
    columns = list(zip(*sizes, strict=True))
    return CfiSizes(*map(sum, columns)) if columns else CfiSizes()


def add_up(files: Iterable[FileSizes]) -> Totals:
    """Add files up."""
    every = tuple(files)
    return Totals(
        len(every),
        add_sizes(file.sizes for file in every),
        sum(file.fde_count for file in every),
        tuple(_add_version(every, version) for version in VERSIONS),
    )


def _add_version(files: tuple[FileSizes, ...], version: int) -> VersionTotal:
    having = [(file, sizes) for file in files if (sizes := file.version(version)).cfi2sframe is not None]
    left_out = add_counts(sizes.left_out for _, sizes in having)
    return VersionTotal(
        version,
        len(having),
        add_sizes(file.sizes for file, _ in having),
        add_layouts(sizes.cfi2sframe for _, sizes in having if sizes.cfi2sframe is not None),
        add_layouts(sizes.gnu for _, sizes in having if sizes.gnu is not None),
        dict(sorted(left_out.items(), key=lambda item: (-item[1], item[0]))),
    )


class SizeReport(NamedTuple):
    """A whole report: what every format shows.

    `files` are sorted, and cut to the number that was asked for; `omitted_count` more were measured, and `totals` and
    `functions` count them too. `version` is the one that `functions` and the order are about.
    """

    version: int
    files: tuple[FileSizes, ...]
    omitted_count: int
    totals: Totals
    functions: Functions
    failures: tuple[Failure, ...]


class Pair(NamedTuple):
    """A file before and after; None where there is none."""

    name: str
    old: FileSizes | None
    new: FileSizes | None

    def sizes(self, version: int, maker: Maker = "cfi2sframe") -> tuple[int, int]:
        """Return the section's size before and after, 0 where there is none."""
        layouts = [None if file is None else file.layout(version, maker) for file in (self.old, self.new)]
        old, new = (0 if layout is None else layout.size for layout in layouts)
        return old, new

    def change(self, version: int) -> int:
        """Return by how many bytes the section grew."""
        old, new = self.sizes(version)
        return new - old


class Comparison(NamedTuple):
    """Two reports side by side, file by file; `totals` are before and after, of all pairs."""

    version: int
    pairs: tuple[Pair, ...]
    omitted_count: int
    totals: tuple[Totals, Totals]
    failures: tuple[Failure, ...]
