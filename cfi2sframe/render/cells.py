# SPDX-License-Identifier: Apache-2.0
"""Cells as people read them, the same in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from cfi2sframe.report.size.tables import Cell, Kind


def cell_text(cell: Cell, kind: Kind) -> str:
    """Return a cell's text; empty where there is nothing to say."""
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
