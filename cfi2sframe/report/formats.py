# SPDX-License-Identifier: Apache-2.0
"""A report as text, Markdown, CSV, JSON or an HTML page: one renderer for each.

Names come from files of strangers, so each renderer escapes what a terminal, a browser or a spreadsheet would act on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.report.records import Report

#: The width of notes in text.
_WIDTH: Final = 80
#: What formulas of spreadsheets begin with, in half and full width.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render(report: Report, format_name: str) -> str:
    """Return a report in one of `FORMATS`. Raises `RequestError` for a page without Jinja2."""
    return _RENDERERS[format_name](report)


def _text(report: Report) -> Iterator[str]:
    import textwrap

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


def _json(report: Report) -> str:
    import json

    return json.dumps(report.data, indent=1) + "\n"


def _html(report: Report) -> str:
    from importlib.resources import files

    try:
        from jinja2 import Environment
    except ImportError:
        raise RequestError("a page needs Jinja2; install cfi2sframe[html], or choose another --format") from None
    source = (files(__package__) / "page.html").read_text("utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).from_string(
        source
    )
    return page.render(report=report, printable=printable)


def _joined(lines_of: Callable[[Report], Iterator[str]]) -> Callable[[Report], str]:
    return lambda report: "".join(f"{line}\n" for line in lines_of(report))


_RENDERERS: Final[dict[str, Callable[[Report], str]]] = {
    "text": _joined(_text),
    "markdown": _joined(_markdown),
    "csv": _csv,
    "json": _json,
    "html": _html,
}
#: The names of all formats; the first is the default.
FORMATS: Final = tuple(_RENDERERS)
