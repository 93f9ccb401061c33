# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal: aligned, with thousands separators, in colour on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.render.cells import cell_text, is_number, tone_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.report.size.tables import Cell, Column, Table

_BOLD: Final = "\033[1m"
_DIM: Final = "\033[2m"
#: Green and yellow.
_TONES: Final = {"better": "\033[32m", "worse": "\033[33m", None: ""}
_RESET: Final = "\033[0m"
_GAP: Final = "  "
#: The width of sentences.
_WIDTH: Final = 80


def render_report(
    headline: str, tables: Iterable[Table], remarks: Iterable[str] = (), *, colour: bool = False
) -> Iterator[str]:
    """Yield the lines of a report: the headline, the first table with the remarks below it, then the others."""
    yield _paint(headline, _BOLD, colour=colour)
    every = list(tables)
    for table in every[:1]:
        yield ""
        yield from _render(table, colour=colour)
    for remark in remarks:
        yield from _folded(remark)
    for table in every[1:]:
        yield ""
        yield from _render(table, colour=colour)


def render_tables(tables: Iterable[Table], *, colour: bool = False) -> Iterator[str]:
    """Yield the lines of all tables, with an empty line between two."""
    for number, table in enumerate(tables):
        if number:
            yield ""
        yield from _render(table, colour=colour)


def _render(table: Table, *, colour: bool) -> Iterator[str]:
    columns = table.columns
    body = [_texts(row, columns) for row in (*table.rows, *((table.total,) if table.total else ()))]
    heading = tuple(column.name for column in columns)
    widths = [max(map(_width, texts)) for texts in zip(heading, *body, strict=True)]
    if table.title:
        yield _paint(table.title, _BOLD, colour=colour)
    yield _paint(_line(heading, columns, widths), _DIM, colour=colour)
    for row, texts in zip(table.rows, body, strict=False):
        paints = [_TONES[tone_of(cell, column)] if colour else "" for cell, column in zip(row, columns, strict=True)]
        yield _line(texts, columns, widths, paints)
    if table.total:
        yield _paint(_line(body[-1], columns, widths), _BOLD, colour=colour)
    if table.note:
        for line in _folded(table.note):
            yield _paint(line, _DIM, colour=colour)


def _folded(text: str) -> list[str]:
    """Return the lines of a sentence, as wide as a terminal is at least; long words stay whole."""
    import textwrap

    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _texts(row: tuple[Cell, ...], columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(cell_text(cell, column.kind) for cell, column in zip(row, columns, strict=True))


def _line(
    texts: tuple[str, ...], columns: tuple[Column, ...], widths: list[int], paints: list[str] | None = None
) -> str:
    cells = []
    for index, (text, column, width) in enumerate(zip(texts, columns, widths, strict=True)):
        fill = " " * (width - _width(text))
        paint = paints[index] if paints else ""
        shown = f"{paint}{text}{_RESET}" if paint and text else text
        cells.append(fill + shown if is_number(column.kind) else shown + fill)
    return _GAP.join(cells).rstrip()


def _width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _paint(text: str, paint: str, *, colour: bool) -> str:
    return f"{paint}{text}{_RESET}" if colour else text
