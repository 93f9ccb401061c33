# SPDX-License-Identifier: Apache-2.0
"""Size reports as tables of typed cells: what to show, in which order. Renderers decide how a cell looks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.report.size.records import MAKERS, NumberChange, by_count, quotient
from cfi2sframe.report.size.row_classes import ROWS_CLASSES
from cfi2sframe.report.size.totals import ratio_bins
from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.report.size.records import (
        Failure,
        FileSizes,
        FunctionSize,
        Maker,
        SectionSizes,
        SizeComparison,
        SizeReport,
        Totals,
    )

Cell = str | int | float | None
#: What a column's cells are: text, whole numbers, signed changes, ratios, or shares in percent.
Kind = Literal["text", "number", "change", "ratio", "percent"]

MAKER_NAMES: Final[dict[Maker, str]] = {"cfi2sframe": "cfi2sframe", "gnu": "GNU as + ld"}


class Column(NamedTuple):
    """The heading of a column, and the kind of its cells."""

    name: str
    kind: Kind = "number"


class Table(NamedTuple):
    """Rows of cells under headings. `total` is a last row with the sums, `note` a sentence below the table."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] | None = None
    note: str = ""


def report_tables(report: SizeReport) -> Iterator[Table]:
    """Yield the tables of a report, except those without rows."""
    totals = report.totals
    tables = (
        versions_table(totals),
        parts_table(totals),
        functions_table(totals),
        lookups_table(totals),
        files_table(report),
        row_sizes_table(totals),
        rows_table(totals),
        left_out_table(totals),
        *named_functions_tables(report),
        failures_table(report.failures),
    )
    yield from (table for table in tables if table.rows)


def comparison_tables(comparison: SizeComparison) -> Iterator[Table]:
    """Yield the tables of a comparison."""
    yield changes_table(comparison)
    yield pairs_table(comparison)
    if comparison.failures:
        yield failures_table(comparison.failures)


def _sections(totals: Totals) -> Iterator[tuple[int, Maker, SectionSizes]]:
    for total in totals.versions:
        if total.file_count:
            for maker in MAKERS:
                yield total.version, maker, total.section(maker)


# Sums


def versions_table(totals: Totals) -> Table:
    """Return the sizes by version, and their ratios to what the files have today."""
    rows = []
    for version, maker, section in _sections(totals):
        total = totals.version(version)
        ratios = total.sizes.ratios(section.size)
        rows.append(
            (
                version,
                MAKER_NAMES[maker],
                total.file_count,
                section.size,
                ratios.to_cfi,
                ratios.to_cfi_and_hdr,
                quotient(section.size, total.sizes.text, 100),
                quotient(section.size, total.sizes.file, 100),
            )
        )
    return Table(
        "Size by version",
        (
            Column("version"),
            Column("laid out by", "text"),
            Column("files"),
            Column(".sframe"),
            Column("to CFI", "ratio"),
            Column("to CFI + hdr", "ratio"),
            Column("of .text", "percent"),
            Column("of file", "percent"),
        ),
        tuple(rows),
        note="CFI is all that was read (of Go, as .debug_frame would have it); hdr is .eh_frame_hdr.",
    )


def parts_table(totals: Totals) -> Table:
    """Return the bytes of each section by part."""
    return Table(
        "Where the bytes go",
        (
            Column("version"),
            Column("laid out by", "text"),
            *(Column(name) for name in ("header", "function table", "attributes", "rows", "padding", ".sframe")),
        ),
        tuple(
            (version, MAKER_NAMES[maker], *section.parts, section.size) for version, maker, section in _sections(totals)
        ),
    )


def functions_table(totals: Totals) -> Table:
    """Return the numbers of functions, by kind, and of rows."""
    return Table(
        "Functions and rows",
        (
            Column("version"),
            Column("laid out by", "text"),
            *map(Column, ("functions", "default", "flexible", "PCMASK", "from code", "left out", "rows", "stored")),
            Column("rows each", "ratio"),
        ),
        tuple(
            (
                version,
                MAKER_NAMES[maker],
                section.function_count,
                section.default_count,
                section.flexible_count,
                section.pcmask_count,
                section.code_count,
                section.left_out_count,
                section.row_count,
                section.stored_row_count,
                section.mean_row_count,
            )
            for version, maker, section in _sections(totals)
        ),
        note="Functions include those for PLT stubs and for code without CFI; rows that are shared are stored once.",
    )


def lookups_table(totals: Totals) -> Table:
    """Return what readers pay for a look-up: rows walked, and comparisons in the function table."""
    costs = [(version, maker, section.lookup_cost) for version, maker, section in _sections(totals)]
    return Table(
        "What a look-up costs",
        (
            Column("version"),
            Column("laid out by", "text"),
            Column("bytes of code"),
            Column("rows walked", "ratio"),
            Column("at most"),
            Column("search steps"),
        ),
        tuple(
            (version, MAKER_NAMES[maker], cost.code_size, cost.mean_rows, cost.max_rows, cost.search_steps)
            for version, maker, cost in costs
        ),
        note="Rows walked are an average over the bytes of code; search steps are those in the largest function table.",
    )


def _by_version(
    title: str, first: Column, totals: Totals, keys: Sequence[str], counts_of: Callable[[SectionSizes], dict[str, int]]
) -> Table:
    """Return one of the counts of every section, side by side."""
    sections = list(_sections(totals))
    counts = [counts_of(section) for _, _, section in sections]
    names = {"cfi2sframe": "v{}", "gnu": "v{} GNU"}
    return Table(
        title,
        (first, *(Column(names[maker].format(version)) for version, maker, _ in sections)),
        tuple((key, *(count.get(key, 0) for count in counts)) for key in keys),
        total=("total", *(sum(count.values()) for count in counts)) if keys else None,
    )


def row_sizes_table(totals: Totals) -> Table:
    """Return the stored rows by their size."""
    sizes = sorted({size for _, _, section in _sections(totals) for size in section.row_sizes})

    def counts_of(section: SectionSizes) -> dict[str, int]:
        return {str(size): count for size, count in section.row_sizes.items()}

    column = Column("bytes", "text")
    return _by_version("Stored rows by their bytes", column, totals, [str(size) for size in sizes], counts_of)


def rows_table(totals: Totals) -> Table:
    """Return the functions by the number of their rows."""
    used = {name for _, _, section in _sections(totals) for name in section.rows_per_function}
    keys = [name for name in ROWS_CLASSES if name in used]
    column = Column("rows", "text")
    return _by_version("Functions by their rows", column, totals, keys, lambda section: section.rows_per_function)


def left_out_table(totals: Totals) -> Table:
    """Return the functions that cfi2sframe leaves out, by reason, and the number of those that it describes in part."""
    versions = [total for total in totals.versions if total.file_count]
    in_parts = [f"{total.in_parts_count:,} in version {total.version}" for total in versions if total.in_parts_count]
    largest: dict[str, int] = {}
    for total in versions:
        for reason, count in total.left_out.items():
            largest[reason] = max(count, largest.get(reason, 0))
    return Table(
        "Left out, and why",
        (Column("reason", "text"), *(Column(f"v{total.version}") for total in versions)),
        tuple((reason, *(total.left_out.get(reason, 0) for total in versions)) for reason in by_count(largest)),
        total=("total", *(sum(total.left_out.values()) for total in versions)),
        note=f"More functions are described in part: {', '.join(in_parts)}." if in_parts else "",
    )


# Files


def files_table(report: SizeReport) -> Table:
    """Return the files with their sizes in every version; the sums include the files that are not listed."""
    totals = report.totals
    version = totals.version(report.version)
    note = "" if not report.omitted_count else f"{report.omitted_count:,} more files count in the total."
    return Table(
        "Files",
        (
            *(Column(name) for name in (".text", "CFI", "hdr", ".sframe", "v1", "v2", "v3")),
            *(Column(name) for name in ("v1 GNU", "v2 GNU", "v3 GNU")),
            Column(f"v{report.version} ratio", "ratio"),
            Column("GNU ratio", "ratio"),
            Column(f"v{report.version} rows walked", "ratio"),
            Column("GNU rows walked", "ratio"),
            Column("functions"),
            Column("left out"),
            Column("file", "text"),
        ),
        tuple(_file_row(file, report.version) for file in report.files),
        total=(
            totals.sizes.text,
            totals.sizes.cfi,
            totals.sizes.eh_frame_hdr,
            totals.sizes.sframe,
            *(totals.version(number).section(maker).size for maker in MAKERS for number in VERSIONS),
            version.ratio(),
            version.ratio("gnu"),
            version.cfi2sframe.lookup_cost.mean_rows,
            version.gnu.lookup_cost.mean_rows,
            version.cfi2sframe.function_count,
            version.cfi2sframe.left_out_count,
            f"{totals.file_count:,} files",
        ),
        note=f"{note} Ratios are to CFI + hdr; rows walked are those of a look-up, on average over the code.".strip(),
    )


def _file_row(file: FileSizes, version: int) -> tuple[Cell, ...]:
    sizes = file.sizes
    sections = [file.section(number, maker) for maker in MAKERS for number in VERSIONS]
    chosen, predicted = file.section(version), file.section(version, "gnu")
    return (
        sizes.text,
        sizes.cfi,
        sizes.eh_frame_hdr,
        sizes.sframe,
        *(None if section is None else section.size for section in sections),
        file.ratio(version),
        file.ratio(version, "gnu"),
        None if chosen is None else chosen.lookup_cost.mean_rows,
        None if predicted is None else predicted.lookup_cost.mean_rows,
        None if chosen is None else chosen.function_count,
        None if chosen is None else chosen.left_out_count,
        file.name,
    )


def ratios_table(report: SizeReport) -> Table:
    """Return the distribution of the listed files over their ratios."""
    bins = ratio_bins(report.files, report.version)
    return Table(
        "Files by their ratio",
        (Column("ratio from", "text"), *(Column(MAKER_NAMES[maker]) for maker in MAKERS)),
        tuple((item.label, *item.counts) for item in bins),
        total=("total", *(sum(column) for column in zip(*(item.counts for item in bins), strict=True))),
    )


def named_functions_tables(report: SizeReport) -> tuple[Table, Table]:
    """Return the functions that are largest in SFrame, and those that exceed their FDE by most."""
    functions = report.functions
    larger = (
        f"{functions.larger_count:,} of {functions.described_count:,} described functions are larger in "
        f"version {report.version} than their FDE."
    )
    columns = (
        *(Column(name) for name in ("code", "FDE", ".sframe")),
        Column("more", "change"),
        Column("address", "text"),
        Column("function", "text"),
        Column("file", "text"),
    )
    return (
        Table("Costliest functions", columns, tuple(map(_function_row, functions.costliest))),
        Table("Functions larger than their FDE", columns, tuple(map(_function_row, functions.larger)), note=larger),
    )


def _function_row(function: FunctionSize) -> tuple[Cell, ...]:
    return (
        function.code_size,
        function.cfi_size,
        function.sframe_size,
        function.excess,
        f"0x{function.address:x}",
        function.name or "(no symbol)",
        function.file,
    )


def failures_table(failures: Sequence[Failure]) -> Table:
    """Return what could not be measured: unexpected failures file by file, the others as numbers by reason."""
    rows: list[tuple[Cell, ...]] = [(1, f.reason, f.name) for f in failures if not f.is_expected]
    expected = by_count(Counter(failure.reason for failure in failures if failure.is_expected))
    rows += [(count, reason, "") for reason, count in expected.items()]
    columns = (Column("files"), Column("reason", "text"), Column("file", "text"))
    return Table("Not measured", columns, tuple(rows), total=(len(failures), "", ""))


# Comparisons


def changes_table(comparison: SizeComparison) -> Table:
    """Return the sums before and after."""
    old, new = comparison.totals
    changes = [
        ("files", NumberChange(old.file_count, new.file_count)),
        ("functions (FDEs)", NumberChange(old.fde_count, new.fde_count)),
        (".text", NumberChange(old.sizes.text, new.sizes.text)),
        ("CFI + hdr", comparison.base),
        (".sframe in the files", NumberChange(old.sizes.sframe, new.sizes.sframe)),
        *(
            (f"version {version}, {MAKER_NAMES[maker]}", comparison.section_change(version, maker))
            for version in VERSIONS
            for maker in MAKERS
        ),
    ]
    rows = tuple((label, *_change_cells(change)) for label, change in changes)
    return Table("Before and after", (Column("what", "text"), *_CHANGE_COLUMNS), rows)


_CHANGE_COLUMNS: Final = (Column("old"), Column("new"), Column("change", "change"), Column("change in %", "percent"))


def _change_cells(change: NumberChange) -> tuple[Cell, ...]:
    return change.old, change.new, change.difference, change.percent


def pairs_table(comparison: SizeComparison) -> Table:
    """Return the files that grew and those that shrank, the largest change first."""
    version = comparison.version
    note = "" if not comparison.omitted_count else f"{comparison.omitted_count:,} more files count in the total."
    return Table(
        f"Files, version {version}",
        (*_CHANGE_COLUMNS, Column("CFI + hdr", "change"), Column("verdict", "text"), Column("file", "text")),
        tuple(
            (*_change_cells(pair.sizes(version)), pair.base.difference, pair.verdict(version), pair.name)
            for pair in comparison.pairs
        ),
        total=(
            *_change_cells(comparison.section_change(version, "cfi2sframe")),
            comparison.base.difference,
            "",
            f"{len(comparison.pairs) + comparison.omitted_count:,} files",
        ),
        note=note,
    )
