# SPDX-License-Identifier: Apache-2.0
"""Size reports as tables of typed cells: what to show and in which order. How a cell looks is a renderer's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.report.size.records import MAKERS, ROWS_CLASSES
from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.report.size.records import (
        Comparison,
        Failure,
        FileSizes,
        FunctionSize,
        Layout,
        Maker,
        Pair,
        SizeReport,
        Totals,
    )

Cell = str | int | float | None
#: How a column's cells read: text, a whole number, a signed change, a ratio with two decimals, or a share in percent.
Kind = Literal["text", "number", "change", "ratio", "percent"]

MAKER_NAMES: Final[dict[Maker, str]] = {"cfi2sframe": "cfi2sframe", "gnu": "GNU as + ld"}


class Column(NamedTuple):
    """A column's heading and the kind of its cells."""

    name: str
    kind: Kind = "number"


class Table(NamedTuple):
    """Rows of cells under headings. `total` is a last row that adds up the others, `note` a sentence below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] | None = None
    note: str = ""


def report_tables(report: SizeReport) -> Iterator[Table]:
    """Yield the tables of a report; those that would be empty are left out."""
    totals = report.totals
    tables = (
        versions_table(totals),
        parts_table(totals),
        functions_table(totals),
        files_table(report),
        row_sizes_table(totals),
        rows_table(totals),
        left_out_table(totals),
        *named_functions_tables(report),
        failures_table(report.failures),
    )
    yield from (table for table in tables if table.rows)


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """Yield the tables of a comparison."""
    yield changes_table(comparison)
    yield pairs_table(comparison)
    if comparison.failures:
        yield failures_table(comparison.failures)


def quotient(part: float, whole: float, scale: float = 1.0) -> float | None:
    """Return part / whole, or None where there is nothing to divide by."""
    return scale * part / whole if whole else None


def _layouts(totals: Totals) -> Iterator[tuple[int, Maker, Layout]]:
    for total in totals.versions:
        if total.file_count:
            for maker in MAKERS:
                yield total.version, maker, total.layout(maker)


# Sums


def versions_table(totals: Totals) -> Table:
    """Return the sizes by version, and what they are to what the files have today."""
    rows = []
    for version, maker, layout in _layouts(totals):
        total = totals.version(version)
        sizes = total.sizes
        rows.append(
            (
                version,
                MAKER_NAMES[maker],
                total.file_count,
                layout.size,
                quotient(layout.size, sizes.cfi),
                quotient(layout.size, sizes.base),
                quotient(layout.size, sizes.text, 100),
                quotient(layout.size, sizes.file, 100),
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
        note="CFI is .eh_frame, or .debug_frame in a file without; hdr is .eh_frame_hdr.",
    )


def parts_table(totals: Totals) -> Table:
    """Return where each section's bytes go."""
    return Table(
        "Where the bytes go",
        (
            Column("version"),
            Column("laid out by", "text"),
            *(Column(name) for name in ("header", "function table", "attributes", "rows", "padding", ".sframe")),
        ),
        tuple((version, MAKER_NAMES[maker], *layout.parts, layout.size) for version, maker, layout in _layouts(totals)),
    )


def functions_table(totals: Totals) -> Table:
    """Return what the sections say: functions by kind, and rows."""
    return Table(
        "Functions and rows",
        (
            Column("version"),
            Column("laid out by", "text"),
            *(Column(name) for name in ("functions", "default", "flexible", "PCMASK", "left out", "rows", "stored")),
            Column("rows each", "ratio"),
        ),
        tuple(
            (
                version,
                MAKER_NAMES[maker],
                layout.function_count,
                layout.default_count,
                layout.flexible_count,
                layout.pcmask_count,
                layout.left_out_count,
                layout.row_count,
                layout.stored_row_count,
                quotient(layout.row_count, layout.function_count),
            )
            for version, maker, layout in _layouts(totals)
        ),
        note="Functions include those for PLT stubs; stored rows are fewer where functions share them.",
    )


def _by_version(title: str, first: Column, totals: Totals, keys: Sequence[tuple[str, str | int]], field: str) -> Table:
    """Return one count of every layout, side by side."""
    layouts = list(_layouts(totals))
    counts: list[dict[str | int, int]] = [getattr(layout, field) for _, _, layout in layouts]
    names = {"cfi2sframe": "v{}", "gnu": "v{} GNU"}
    return Table(
        title,
        (first, *(Column(names[maker].format(version)) for version, maker, _ in layouts)),
        tuple((label, *(count.get(key, 0) for count in counts)) for label, key in keys),
        total=("total", *(sum(count.values()) for count in counts)) if keys else None,
    )


def row_sizes_table(totals: Totals) -> Table:
    """Return how many rows take how many bytes."""
    sizes = sorted({size for _, _, layout in _layouts(totals) for size in layout.row_sizes})
    keys = [(str(size), size) for size in sizes]
    return _by_version("Stored rows by their bytes", Column("bytes", "text"), totals, keys, "row_sizes")


def rows_table(totals: Totals) -> Table:
    """Return how many functions have how many rows."""
    used = {name for _, _, layout in _layouts(totals) for name in layout.rows_per_function}
    keys = [(name, name) for name in ROWS_CLASSES if name in used]
    return _by_version("Functions by their rows", Column("rows", "text"), totals, keys, "rows_per_function")


def left_out_table(totals: Totals) -> Table:
    """Return why cfi2sframe leaves functions out."""
    versions = [total for total in totals.versions if total.file_count]
    worst: dict[str, int] = {}
    for total in versions:
        for reason, count in total.left_out.items():
            worst[reason] = max(count, worst.get(reason, 0))
    return Table(
        "Left out, and why",
        (Column("reason", "text"), *(Column(f"v{total.version}") for total in versions)),
        tuple(
            (reason, *(total.left_out.get(reason, 0) for total in versions))
            for reason in sorted(worst, key=lambda reason: (-worst[reason], reason))
        ),
        total=("total", *(sum(total.left_out.values()) for total in versions)),
    )


# Files


def files_table(report: SizeReport) -> Table:
    """Return the files with their sizes in every version; the sums are those of all files, listed or not."""
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
            *(totals.version(number).layout(maker).size for maker in MAKERS for number in VERSIONS),
            version.ratio(),
            version.ratio("gnu"),
            version.cfi2sframe.function_count,
            version.cfi2sframe.left_out_count,
            f"{totals.file_count:,} files",
        ),
        note=f"{note} Ratios are to CFI + hdr.".strip(),
    )


def _file_row(file: FileSizes, version: int) -> tuple[Cell, ...]:
    sizes = file.sizes
    layouts = [file.layout(number, maker) for maker in MAKERS for number in VERSIONS]
    chosen = file.layout(version)
    return (
        sizes.text,
        sizes.cfi,
        sizes.eh_frame_hdr,
        sizes.sframe,
        *(None if layout is None else layout.size for layout in layouts),
        file.ratio(version),
        file.ratio(version, "gnu"),
        None if chosen is None else chosen.function_count,
        None if chosen is None else chosen.left_out_count,
        file.name,
    )


def named_functions_tables(report: SizeReport) -> tuple[Table, Table]:
    """Return the functions that cost most, and those that cost most beyond their FDE."""
    functions = report.functions
    larger = (
        f"{functions.larger_count:,} of {functions.described_count:,} described functions take more bytes in "
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
    """Return what could not be measured: each file that should have been, and the others as a number by reason."""
    rows: list[tuple[Cell, ...]] = [(1, f.reason, f.name) for f in failures if not f.is_expected]
    expected: dict[str, int] = {}
    for failure in failures:
        if failure.is_expected:
            expected[failure.reason] = expected.get(failure.reason, 0) + 1
    rows += [(count, reason, "") for reason, count in sorted(expected.items(), key=lambda item: (-item[1], item[0]))]
    columns = (Column("files"), Column("reason", "text"), Column("file", "text"))
    return Table("Not measured", columns, tuple(rows), total=(len(failures), "", ""))


# Comparisons


def changes_table(comparison: Comparison) -> Table:
    """Return the sums before and after."""
    old, new = comparison.totals
    rows: list[tuple[Cell, ...]] = [
        _change_row("files", old.file_count, new.file_count),
        _change_row("functions (FDEs)", old.fde_count, new.fde_count),
        _change_row(".text", old.sizes.text, new.sizes.text),
        _change_row("CFI + hdr", old.sizes.base, new.sizes.base),
        _change_row(".sframe in the files", old.sizes.sframe, new.sizes.sframe),
    ]
    for version in VERSIONS:
        for maker in MAKERS:
            before, after = (totals.version(version).layout(maker).size for totals in (old, new))
            rows.append(_change_row(f"version {version}, {MAKER_NAMES[maker]}", before, after))
    return Table("Before and after", (Column("", "text"), *_CHANGE_COLUMNS), tuple(rows))


_CHANGE_COLUMNS: Final = (Column("old"), Column("new"), Column("change", "change"), Column("change in %", "percent"))


def _change_row(label: str, old: int, new: int) -> tuple[Cell, ...]:
    return label, old, new, new - old, quotient(new - old, old, 100)


def pairs_table(comparison: Comparison) -> Table:
    """Return what grew and what shrank, the largest change first."""
    version = comparison.version
    old, new = (totals.version(version).layout("cfi2sframe").size for totals in comparison.totals)
    note = "" if not comparison.omitted_count else f"{comparison.omitted_count:,} more files count in the total."
    return Table(
        f"Files, version {version}",
        (*_CHANGE_COLUMNS, Column("CFI + hdr", "change"), Column("", "text"), Column("file", "text")),
        tuple(_pair_row(pair, version) for pair in comparison.pairs),
        total=(
            *_change_row("", old, new)[1:],
            comparison.totals[1].sizes.base - comparison.totals[0].sizes.base,
            "",
            f"{len(comparison.pairs) + comparison.omitted_count:,} files",
        ),
        note=note,
    )


def _pair_row(pair: Pair, version: int) -> tuple[Cell, ...]:
    old, new = pair.sizes(version)
    base_change = (pair.new.sizes.base if pair.new else 0) - (pair.old.sizes.base if pair.old else 0)
    return *_change_row("", old, new)[1:], base_change, verdict(pair, version), pair.name


def verdict(pair: Pair, version: int) -> str:
    """Return what became of a file in one word."""
    if pair.old is None:
        return "added"
    if pair.new is None:
        return "removed"
    change = pair.change(version)
    return "grew" if change > 0 else "shrank" if change < 0 else "same"
