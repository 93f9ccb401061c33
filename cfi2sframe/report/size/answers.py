# SPDX-License-Identifier: Apache-2.0
"""The table that answers first: what each file or folder costs in one version, in few columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from cfi2sframe.report.size.records import FileSizes, Folders, quotient
from cfi2sframe.report.size.tables import Column, Table
from cfi2sframe.report.size.totals import Figures, figures_of, figures_of_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.report.size.records import FileGroup, SizeComparison, SizeReport
    from cfi2sframe.report.size.tables import Cell

#: What a line of the table is about.
By = Literal["file", "folder"]

_COLUMNS: Final = (
    Column(".sframe"),
    Column("ratio", "ratio"),
    Column("of file", "percent"),
    Column("GNU as+ld"),
    Column("rows", "ratio"),
)
_WIDE_COLUMNS: Final = (
    Column("ratio", "ratio"),
    Column(".sframe"),
    Column("of file", "percent"),
    Column("CFI + hdr"),
    Column("GNU as + ld"),
    Column("GNU ratio", "ratio"),
    Column("rows walked", "ratio"),
    Column("left out"),
)
_NOTE: Final = (
    "ratio: .sframe to .eh_frame + .eh_frame_hdr; rows: what a look-up walks, on average over the bytes of code."
)
_WIDE_NOTE: Final = (
    "Ratios are to CFI + hdr, the .eh_frame and .eh_frame_hdr of today; rows walked are those of a look-up, on average "
    "over the bytes of code; FDEs are left out that the version cannot express."
)


def answer_table(report: SizeReport, by: By) -> Table:
    """Return the table of a report, with the name as the last column: nothing of it is cut off."""
    folder = common_folder([file.name for file in report.files]) if by == "file" else ""
    items, omitted_count, every = _lines(report, by)
    counts_files = by != "file"
    rows = tuple(
        (
            *_cells(figures_of(item, report.version)),
            *((item.totals.file_count,) if not isinstance(item, FileSizes) else ()),
            item.name[len(folder) :],
        )
        for item in items
    )
    total = (
        *_cells(figures_of_totals(report.totals, report.version)),
        *((report.totals.file_count,) if counts_files else ()),
        counted(every, by),
    )
    columns = (
        *_COLUMNS,
        *((Column("files"),) if counts_files else ()),
        Column(f"{by}, in {folder}" if folder else by, "text"),
    )
    return Table("", columns, rows, total if every != 1 or not rows else None, _omitted(omitted_count, by) + _NOTE)


def _lines(report: SizeReport, by: By) -> tuple[Sequence[FileSizes | FileGroup], int, int]:
    """Return what the table lists, how many more there are, and how many there are in all."""
    if by == "file":
        return report.files, report.omitted_count, report.totals.file_count
    groups, omitted_count = report.folders or Folders(())
    return groups, omitted_count, len(groups) + omitted_count


def _omitted(count: int, by: By) -> str:
    if not count:
        return ""
    more = f"{count:,} more {plural(by, count)} {'is' if count == 1 else 'are'} in the total (--top all lists them)"
    return f"{more}. "


def plural(noun: str, count: int) -> str:
    """Return a noun, in the plural unless the count is one."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, by: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {plural(by, count)}"


def _cells(figures: Figures) -> tuple[Cell, ...]:
    ours, gnu = figures.ours, figures.gnu
    return (
        None if ours is None else ours.size,
        figures.ratio,
        figures.growth_percent,
        None if gnu is None else gnu.size,
        None if ours is None else ours.lookup_cost.mean_rows,
    )


def common_folder(names: Sequence[str]) -> str:
    """Return the folder that several names start with, with its last slash; nothing of a single name."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]


# Pages have room for more columns


def wide_table(report: SizeReport, by: By = "file") -> Table:
    """Return the table of the files, or of the folders, with the ratio as its second column."""
    items, omitted_count, every = _lines(report, by)
    more = () if by == "file" else (Column("files"),)
    rows = tuple(
        (
            item.name,
            *_wide_cells(figures_of(item, report.version)),
            *((item.totals.file_count,) if not isinstance(item, FileSizes) else ()),
        )
        for item in items
    )
    total = (
        counted(every, by),
        *_wide_cells(figures_of_totals(report.totals, report.version)),
        *(() if by == "file" else (report.totals.file_count,)),
    )
    title = plural(by, 2).capitalize()
    columns = (Column(by, "text"), *_WIDE_COLUMNS, *more)
    return Table(title, columns, rows, total, _omitted(omitted_count, by) + _WIDE_NOTE)


def _wide_cells(figures: Figures) -> tuple[Cell, ...]:
    size, ratio, percent, gnu, rows = _cells(figures)
    gnu_ratio = None if figures.gnu is None else quotient(figures.gnu.size, figures.sizes.base)
    left_out = None if figures.ours is None else figures.ours.left_out_count
    return ratio, size, percent, figures.sizes.base, gnu, gnu_ratio, rows, left_out


# Comparisons


def comparison_answer(comparison: SizeComparison) -> Table:
    """Return the files whose section changed, the largest change first, and the sum of all."""
    version = comparison.version
    changed = [pair for pair in comparison.pairs if pair.verdict(version) != "same"]
    # Those that stay the same come last: when some are listed, so are all that changed.
    same_count = len(comparison.pairs) - len(changed)
    if same_count:
        same_count += comparison.omitted_count
        note = f"{counted(same_count, 'file')} {'stays' if same_count == 1 else 'stay'} the same."
    else:
        note = _omitted(comparison.omitted_count, "file").strip()
    sizes = comparison.section_change(version, "cfi2sframe")
    count = len(comparison.pairs) + comparison.omitted_count
    folder = common_folder([pair.name for pair in changed])
    return Table(
        "",
        (
            Column("change", "change"),
            Column("in %", "percent"),
            Column("old"),
            Column("new"),
            Column("CFI + hdr", "change"),
            Column("verdict", "text"),
            Column(f"file, in {folder}" if folder else "file", "text"),
        ),
        tuple(
            (
                (change := pair.sizes(version)).difference,
                change.percent,
                change.old,
                change.new,
                pair.base.difference,
                pair.verdict(version),
                pair.name[len(folder) :],
            )
            for pair in changed
        ),
        (sizes.difference, sizes.percent, sizes.old, sizes.new, comparison.base.difference, "", counted(count, "file"))
        if count != 1
        else None,
        note,
    )
