# SPDX-License-Identifier: Apache-2.0
"""Size reports as CSV (RFC 4180): one line per file, plain numbers, an empty cell for None.

Spreadsheets evaluate text that looks like a formula, and names come from untrusted files: such text is written with an
apostrophe before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.report.size.records import MAKERS, CfiSizes, Parts
from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from typing import Protocol

    from cfi2sframe.report.size.records import (
        FileSizes,
        Folders,
        SectionSizes,
        SizeComparison,
        SizeReport,
    )

    class Writer(Protocol):
        """A text stream."""

        def write(self, text: str, /) -> object:
            """Write a piece of text."""


#: What formulas begin with, in half and full width. Tabs and line breaks, which may come first, are escaped.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: The sections that a line has the sizes of.
_SECTION_COUNT: Final = len(VERSIONS) * len(MAKERS)
_COUNTS = ("functions", "default", "flexible", "pcmask", "left_out", "rows", "stored_rows")
_COSTS = ("lookup_code_size", "lookup_walked_count", "lookup_mean_rows", "lookup_max_rows", "lookup_search_steps")


def write_report(report: SizeReport, out: Writer) -> None:
    """Write the files of a report; those that could not be measured come last, with nothing but `error`."""
    import csv

    writer = csv.writer(out)
    writer.writerow((*_file_heading(), "larger_than_fde", "error"))
    writer.writerows((*_file_row(file), file.functions.larger_count, "") for file in report.files)
    blank = [""] * len(_file_heading())
    writer.writerows((_text(f.name), *blank, _text(f.reason)) for f in report.failures)


def write_folders(folders: Folders, out: Writer) -> None:
    """Write folders: a line for each, with the sums of its files."""
    import csv

    writer = csv.writer(out)
    section_heading = _file_heading()[-_SECTION_COUNT * len(_section_fields()) :]
    sizes_heading = [f"{name}_size" for name in CfiSizes._fields]
    writer.writerow(("folder", "files", *sizes_heading, "fdes", *section_heading, "larger_than_fde"))
    for group in folders.groups:
        totals = group.totals
        cells: list[object] = [_text(group.name), totals.file_count, *totals.sizes, totals.fde_count]
        for total in totals.versions:
            for maker in MAKERS:
                cells += _section_cells(total.section(maker) if total.file_count else None)
        writer.writerow((*cells, group.larger_count))


def write_comparison(comparison: SizeComparison, out: Writer) -> None:
    """Write the pairs of a comparison."""
    import csv

    writer = csv.writer(out)
    makes = [(version, maker) for version in VERSIONS for maker in MAKERS]
    names = ("cfi", "eh_frame_hdr", *(f"v{version}_{maker}" for version, maker in makes))
    writer.writerow(("file", "verdict", "change", *(f"{side}_{name}" for side in ("old", "new") for name in names)))
    for pair in comparison.pairs:
        cells: list[object] = []
        for file in (pair.old, pair.new):
            if file is None:
                cells += [""] * len(names)
                continue
            sections = [file.section(version, maker) for version, maker in makes]
            cells += [file.sizes.cfi, file.sizes.eh_frame_hdr]
            cells += ["" if section is None else section.size for section in sections]
        writer.writerow((_text(pair.name), pair.verdict(comparison.version), pair.change(comparison.version), *cells))


def _text(text: str) -> str:
    """Return text that neither a terminal nor a spreadsheet interprets."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _file_heading() -> tuple[str, ...]:
    prefixes = [f"v{version}_{maker}_" for version in VERSIONS for maker in MAKERS]
    return (
        "file",
        "arch",
        "kind",
        "source",
        *(f"{name}_size" for name in CfiSizes._fields),
        "sframe_version",
        "fdes",
        *(prefix + field for prefix in prefixes for field in _section_fields()),
    )


def _section_fields() -> tuple[str, ...]:
    return ("size", *(f"{name}_size" for name in Parts._fields), *_COUNTS, *_COSTS)


def _file_row(file: FileSizes) -> tuple[object, ...]:
    cells: list[object] = [_text(file.name), file.arch, file.kind, file.source, *file.sizes]
    cells += ["" if file.sframe_version is None else file.sframe_version, file.fde_count]
    for version in VERSIONS:
        for maker in MAKERS:
            cells += _section_cells(file.section(version, maker))
    return tuple(cells)


def _section_cells(section: SectionSizes | None) -> list[object]:
    if section is None:
        return [""] * len(_section_fields())
    counts = (
        section.function_count,
        section.default_count,
        section.flexible_count,
        section.pcmask_count,
        section.left_out_count,
        section.row_count,
        section.stored_row_count,
    )
    cost = section.lookup_cost
    costs = (cost.code_size, cost.walked_count, f"{cost.mean_rows:.4f}", cost.max_rows, cost.search_steps)
    return [section.size, *section.parts, *counts, *costs]
