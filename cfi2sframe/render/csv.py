# SPDX-License-Identifier: Apache-2.0
"""Size reports as CSV (RFC 4180): one line per file, numbers as they are, empty where there is nothing.

Names come from strangers, and spreadsheets run text that looks like a formula: such text begins with an apostrophe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.report.size.records import MAKERS, CfiSizes, Parts
from cfi2sframe.report.size.tables import verdict
from cfi2sframe.sframe.constants import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from cfi2sframe.report.size.records import Comparison, FileSizes, Layout, SizeReport

    class Writer(Protocol):
        """What CSV is written to."""

        def write(self, text: str, /) -> object:
            """Take a piece of text."""


#: What formulas begin with, in half and full width. Tabs and line breaks do too, and are escaped.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COUNTS = ("functions", "default", "flexible", "pcmask", "left_out", "rows", "stored_rows")


def write_report(report: SizeReport, out: Writer) -> None:
    """Write the files of a report; files that could not be measured come last, with `error` only."""
    import csv

    writer = csv.writer(out)
    writer.writerow((*_file_heading(), "larger_than_fde", "error"))
    writer.writerows((*_file_row(file), file.functions.larger_count, "") for file in report.files)
    blank = [""] * len(_file_heading())
    writer.writerows((_text(f.name), *blank, _text(f.reason)) for f in report.failures)


def write_comparison(comparison: Comparison, out: Writer) -> None:
    """Write the pairs of a comparison."""
    import csv

    writer = csv.writer(out)
    layouts = [(version, maker) for version in VERSIONS for maker in MAKERS]
    sides = [f"{side}_{name}" for side in ("old", "new") for name in ("cfi", "eh_frame_hdr", *_names(layouts))]
    writer.writerow(("file", "verdict", "change", *sides))
    for pair in comparison.pairs:
        cells: list[object] = []
        for file in (pair.old, pair.new):
            if file is None:
                cells += [""] * (2 + len(layouts))
                continue
            cells += [file.sizes.cfi, file.sizes.eh_frame_hdr]
            cells += ["" if (layout := file.layout(*which)) is None else layout.size for which in layouts]
        writer.writerow((_text(pair.name), verdict(pair, comparison.version), pair.change(comparison.version), *cells))


def _text(text: str) -> str:
    """Return text that neither a terminal nor a spreadsheet acts on."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _names(layouts: Sequence[tuple[int, str]]) -> list[str]:
    return [f"v{version}_{maker}" for version, maker in layouts]


def _file_heading() -> tuple[str, ...]:
    layouts = [f"v{version}_{maker}_" for version in VERSIONS for maker in MAKERS]
    fields = ("size", *(f"{name}_size" for name in Parts._fields), *_COUNTS)
    return (
        "file",
        "arch",
        "kind",
        "source",
        *(f"{name}_size" for name in CfiSizes._fields),
        "sframe_version",
        "fdes",
        *(prefix + field for prefix in layouts for field in fields),
    )


def _file_row(file: FileSizes) -> tuple[object, ...]:
    cells: list[object] = [_text(file.name), file.arch, file.kind, file.source, *file.sizes]
    cells += ["" if file.sframe_version is None else file.sframe_version, file.fde_count]
    for version in VERSIONS:
        for maker in MAKERS:
            cells += _layout_cells(file.layout(version, maker))
    return tuple(cells)


def _layout_cells(layout: Layout | None) -> list[object]:
    if layout is None:
        return [""] * (1 + len(Parts._fields) + len(_COUNTS))
    counts = (
        layout.function_count,
        layout.default_count,
        layout.flexible_count,
        layout.pcmask_count,
        layout.left_out_count,
        layout.row_count,
        layout.stored_row_count,
    )
    return [layout.size, *layout.parts, *counts]
