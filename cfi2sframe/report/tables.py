# SPDX-License-Identifier: Apache-2.0
"""A report: a headline, tables of typed cells, notes, and data; and a renderer for each format.

Names come from untrusted files: each renderer escapes what a terminal, a browser or a spreadsheet would act on.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.text import printable

Cell = int | float | str | None

#: The most bars of a chart.
MAX_BARS: Final = 12
#: The names of all formats; the first is the default.
FORMATS: Final = ("text", "markdown", "csv", "json", "html")
#: The width of notes in text.
_WIDTH: Final = 80
#: A cell that begins with one of these is a formula to a spreadsheet, also in full width.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class Column(NamedTuple):
    """A heading and, for numbers, their format and unit."""

    name: str
    format: str = ""
    unit: str = ""

    def text(self, cell: Cell) -> str:
        """Return a cell as text that is safe to print; empty for None."""
        if cell is None:
            return ""
        return printable(cell) if isinstance(cell, str) else f"{cell:{self.format}}{self.unit}"


class Table(NamedTuple):
    """Rows of cells, and perhaps a last row with sums. In pages a row opens the tables that `detail` returns for it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    total: Sequence[Cell] | None = None
    detail: "Callable[[int], Sequence[Table]] | None" = None

    @property
    def texts(self) -> list[list[str]]:
        """All rows as text, the sums last."""
        rows = [*self.rows, *([] if self.total is None else [self.total])]
        return [list(map(Column.text, self.columns, row)) for row in rows]


class Bar(NamedTuple):
    """A bar of a chart: its name, the text beside it, and the size of each of its parts."""

    name: str
    text: str
    sizes: Sequence[int]


class Chart(NamedTuple):
    """Bars, for pages; `parts` names the parts of each. A bar of `whole` has the full width; 0: each has."""

    parts: Sequence[str]
    bars: Sequence[Bar]
    whole: int = 0

    def widths(self, bar: Bar) -> list[float]:
        """Return the widths of a bar's parts, in percent of the chart's."""
        whole = self.whole or sum(bar.sizes) or 1
        return [round(100 * size / whole, 1) for size in bar.sizes]


class Report(NamedTuple):
    """The result of a verb for some files.

    `headline` is a sentence without a full stop. `data` is for JSON, after the schema's version; its "files", without
    their lists, are the rows of CSV. `lines`, if there are any, are all of the text. `origin` is for pages: the command
    that made the report, with its version and the date.
    """

    headline: str
    tables: Sequence[Table]
    notes: Sequence[str]
    data: Mapping[str, Any]
    lines: Iterable[str] | None = None
    origin: str = ""
    chart: Chart | None = None


def cells_of(record: object, columns: Mapping[Column, str]) -> list[Cell]:
    """Return the cells of a record; `columns` has the field that each column shows."""
    return [getattr(record, name) for name in columns.values()]


def column_sums(records: Sequence[object], names: Iterable[str]) -> dict[str, Any]:
    """Return the sums of some fields of records."""
    return {name: sum(getattr(record, name) for record in records) for name in names}


def common_directory(names: Sequence[str]) -> str:
    """Return the directory that several names share, with a slash at its end; nothing for a single name."""
    common = os.path.commonprefix(names) if len(names) > 1 else ""  # noqa: RUF071 - cut at a slash
    directory = common[: common.rfind("/") + 1]
    return "" if directory == "/" else directory


def file_column(directory: str) -> Column:
    """Return the column of files' names, from which the directory that they share is removed."""
    return Column(f"file, in {directory}" if directory else "file")


def check_format(format_name: str) -> None:
    """Raise `RequestError` if a format needs a package that is not installed."""
    if format_name == "html" and find_spec("jinja2") is None:
        raise RequestError("HTML output needs Jinja2: pip install jinja2, or Debian's python3-jinja2")


def render(report: Report, format_name: str) -> str:
    """Return a report in one of `FORMATS`. Raises what `check_format` raises."""
    match format_name:
        case "json":
            import json

            return json.dumps({"schema": SCHEMA_VERSION, **report.data}, indent=1) + "\n"
        case "csv":
            return _csv(report)
        case "html":
            return _html(report)
    lines = _markdown(report) if format_name == "markdown" else _text(report)
    return "".join(f"{line}\n" for line in lines)


def _text(report: Report) -> Iterator[str]:
    import textwrap

    if report.lines is not None:
        yield from map(printable, report.lines)
        return
    yield printable(report.headline)
    for table in report.tables:
        yield from ("", *([table.title] if table.title else []))
        body = [[column.name for column in table.columns], *table.texts]
        widths = [max(map(len, texts)) for texts in zip(*body, strict=True)]
        for texts in body:
            cells = zip(texts, widths, table.columns, strict=True)
            yield "  ".join(text.rjust(w) if column.format else text.ljust(w) for text, w, column in cells).rstrip()
    if any(table.title for table in report.tables) and report.notes:
        yield ""
    for note in report.notes:
        yield from textwrap.wrap(printable(note), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _markdown(report: Report) -> Iterator[str]:
    yield f"**{_escaped(report.headline)}**"
    for table in report.tables:
        yield from ("", *([f"### {_escaped(table.title)}", ""] if table.title else []))
        yield f"| {' | '.join(_escaped(column.name) for column in table.columns)} |"
        yield f"| {' | '.join('---:' if column.format else '---' for column in table.columns)} |"
        yield from (f"| {' | '.join(map(_escaped, texts))} |" for texts in table.texts)
    for note in report.notes:
        yield from ("", _escaped(note))


def _escaped(text: str) -> str:
    """Escape what Markdown would take for markup, mathematics or a bare link."""
    escaped = "".join(f"\\{c}" if c in r"\`*_[]<>|#&~$" else c for c in printable(text))
    return escaped.replace("://", r"\://").replace("www.", r"www\.")


def _csv(report: Report) -> str:
    """Return a row for each file, of its plain values; text is quoted, and no cell is a formula."""
    import csv
    import io

    files = report.data["files"]
    names = [key for key, value in files[0].items() if not isinstance(value, list | dict)] if files else []
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(names)
    writer.writerows([_csv_cell(file[name]) for name in names] for file in files)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return int(value) if isinstance(value, bool) else value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _html(report: Report) -> str:
    import base64
    import hashlib
    from importlib.resources import files

    check_format("html")
    from jinja2 import Environment

    source = (files(__package__) / "page.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    # The policy of the page allows this script alone.
    script = source.partition("<script>")[2].partition("</script>")[0]
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(source).render(report=report, script_hash=script_hash, printable=printable)
