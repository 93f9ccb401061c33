# SPDX-License-Identifier: Apache-2.0
"""Cells of size tables as text, and whether they are good news: the same in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from cfi2sframe.report.size.tables import Cell, Column, Kind


def cell_text(cell: Cell, kind: Kind) -> str:
    """Return a cell's text; empty for None."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell)
    if kind == "ratio":
        return f"{cell:.2f}"
    if kind == "percent":
        return f"{cell:.2f} %"
    if kind == "change":
        return f"{cell:+,}" if cell else "0"
    return f"{cell:,}"


def is_number(kind: Kind) -> bool:
    """Whether a column's cells are aligned to the right."""
    return kind != "text"


def tone_of(cell: Cell, column: Column) -> Literal["better", "worse"] | None:
    """Return "better" for ratios and changes in favour of SFrame, "worse" for the others; None for other cells."""
    if isinstance(cell, str) or cell is None:
        return None
    if column.kind == "ratio" and "rows" not in column.name:
        return "better" if cell <= 1 else "worse"
    if column.kind == "change" and cell:
        return "better" if cell < 0 else "worse"
    return None
