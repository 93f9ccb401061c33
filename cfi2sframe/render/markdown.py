# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown, in the dialect that GitHub, GitLab and Pandoc share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.render.cells import cell_text, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.report.size.tables import Table


def render_report(headline: str, tables: Iterable[Table], remarks: Iterable[str] = ()) -> Iterator[str]:
    """Yield the lines of a report: the headline in bold, the first table with the remarks below it, then the others."""
    yield f"**{escape(headline)}**"
    every = list(tables)
    for table in every[:1]:
        yield ""
        yield from render_markdown([table])
    for remark in remarks:
        yield ""
        yield escape(remark)
    for table in every[1:]:
        yield ""
        yield from render_markdown([table])


def render_markdown(tables: Iterable[Table]) -> Iterator[str]:
    """Yield the lines of all tables, each under a heading."""
    for number, table in enumerate(tables):
        if number:
            yield ""
        if table.title:
            yield f"### {escape(table.title)}"
            yield ""
        yield from markdown_table(table)
        if table.note:
            yield ""
            yield escape(table.note)


def markdown_table(table: Table) -> Iterator[str]:
    """Yield the lines of one table without its heading."""
    columns = table.columns
    yield _line(escape(column.name) for column in columns)
    yield _line("---:" if is_number(column.kind) else "---" for column in columns)
    for row in table.rows:
        yield _line(escape(cell_text(cell, column.kind)) for cell, column in zip(row, columns, strict=True))
    if table.total:
        texts = (escape(cell_text(cell, column.kind)) for cell, column in zip(table.total, columns, strict=True))
        yield _line(f"**{text}**" if text else "" for text in texts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: str) -> str:
    """Escape what Markdown would take for markup, mathematics or a bare link."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#&~$" else c for c in text)
    return escaped.replace("://", r"\://").replace("www.", r"www\.")
