# SPDX-License-Identifier: Apache-2.0
"""A report: the sentence that answers, tables of typed cells, notes, and the data that JSON and CSV have.

`size.py`, `coverage.py` and `audit.py` make reports; `formats.py` renders them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Cell = int | float | str | None


class Column(NamedTuple):
    """A heading and, for a column of numbers, their format and unit. Pages draw a bar below the cells of `has_bar`."""

    name: str
    format: str = ""
    unit: str = ""
    has_bar: bool = False

    def text(self, cell: Cell) -> str:
        """Return a cell as text that is safe to print; empty for None."""
        if cell is None:
            return ""
        return printable(cell) if isinstance(cell, str) else f"{cell:{self.format}}{self.unit}"


class Table(NamedTuple):
    """Rows of cells, and a last row with the sums of the columns that have one."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] | None = None

    @property
    def texts(self) -> list[list[str]]:
        """All rows as text, the sums last."""
        rows = [*self.rows, *([] if self.total is None else [self.total])]
        return [list(map(Column.text, self.columns, row)) for row in rows]

    def bars(self, column: int) -> list[float]:
        """Return the lengths of the bars of a column, in percent of the longest one."""
        cells = [0 if cell is None or isinstance(cell, str) else cell for cell in (row[column] for row in self.rows)]
        most = max(cells, default=0)
        return [round(100 * cell / most, 1) if most > 0 else 0.0 for cell in cells]


class Report(NamedTuple):
    """What a verb has found out about some files.

    `headline` is a sentence without a full stop. `data` is what JSON has; its "files", without their lists, are the
    rows of CSV.
    """

    headline: str
    tables: Sequence[Table]
    notes: Sequence[str]
    data: Mapping[str, Any]


#: Raised when a key of the data of any report changes its meaning or is removed.
SCHEMA_VERSION: Final = 2


def column_sums(records: Sequence[object], names: Iterable[str], largest: Collection[str]) -> dict[str, Any]:
    """Return the sums of some fields of records; of those in `largest`, the largest."""
    columns = {name: [getattr(each, name) for each in records] for name in names}
    return {name: max(cells, default=0) if name in largest else sum(cells) for name, cells in columns.items()}


def common_folder(names: Sequence[str]) -> str:
    """Return the folder that several names start with, with its last slash; none of a single name."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    folder = first[: first.rfind("/", 0, same) + 1]
    return "" if folder == "/" else folder
