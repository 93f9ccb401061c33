# SPDX-License-Identifier: Apache-2.0
"""Tables of size reports in HTML: in frames that scroll, by themselves or as sections; the page's script sorts them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from cfi2sframe.render.cells import cell_text, is_number, tone_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.report.size.tables import Cell, Column, Table

#: Tables with more rows scroll inside their frame.
_MAX_TABLE_ROWS: Final = 25
#: Columns whose text may be long.
_WRAPPED: Final = ("file", "folder", "function", "reason")


def table_section(identity: str, table: Table, text: str, *, first: int = 0) -> Iterator[str]:
    """Yield a table as a section of its own, unless it has no rows."""
    if not table.rows:
        return
    yield f'<section id="{identity}"><h2>{escape(table.title)}</h2>\n'
    if text:
        yield f"<p>{escape(text)}</p>\n"
    yield from table_frame(table, first=first)
    yield "</section>\n"


def details(summary: str, table: Table) -> Iterator[str]:
    """Yield a table that is folded up, unless it has no rows."""
    if not table.rows:
        return
    yield f"<details><summary>{escape(summary)}</summary>\n"
    yield from table_frame(table)
    yield "</details>\n"


def table_frame(table: Table, *, first: int = 0) -> Iterator[str]:
    """Yield a table in a frame that scrolls. Column number `first` is moved to the front and heads the rows."""
    order = list(range(len(table.columns)))
    order.insert(0, order.pop(first))
    tall = " tall" if len(table.rows) > _MAX_TABLE_ROWS else ""
    title = escape(table.title)
    yield f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{title}">'
    yield f"<table><caption>{title}</caption>\n"
    heads = "".join(f'<th scope="col"{_class(table.columns[n])}>{escape(table.columns[n].name)}</th>' for n in order)
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>\n"
    for row in table.rows:
        yield _row(row, table.columns, order)
    yield "</tbody>\n"
    if table.total:
        yield f"<tfoot>{_row(table.total, table.columns, order)}</tfoot>\n"
    yield "</table></div>\n"
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>\n'


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], order: list[int]) -> str:
    cells = []
    for position, number in enumerate(order):
        column, cell = columns[number], row[number]
        text = escape(cell_text(cell, column.kind))
        if position == 0:
            cells.append(f'<th scope="row"{_class(column, cell)}>{text}</th>')
        else:
            cells.append(f"<td{_class(column, cell)}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>\n"


def _class(column: Column, cell: Cell = None) -> str:
    names = []
    if is_number(column.kind):
        names.append("n")
    elif column.name in _WRAPPED:
        names.append("wrap")
    tone = tone_of(cell, column)
    if tone:
        names.append(tone)
    return f' class="{" ".join(names)}"' if names else ""
