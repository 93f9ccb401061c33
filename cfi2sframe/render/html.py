# SPDX-License-Identifier: Apache-2.0
"""Size reports as one HTML file that needs nothing else: no network, no script.

`page.html` is the frame and `style.css` the style sheet of both kinds of pages.
"""

from __future__ import annotations

from html import escape
from importlib import resources
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.render.cells import cell_text, is_number, tone_of
from cfi2sframe.render.charts import Bar, BarGroup, Bin, Segment, bar_chart, column_chart, legend
from cfi2sframe.report.size import tables
from cfi2sframe.report.size.records import MAKERS
from cfi2sframe.report.size.totals import ratio_bins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.report.size.records import (
        CfiSizes,
        FileSizes,
        Maker,
        Pair,
        SectionSizes,
        SizeComparison,
        SizeReport,
        Totals,
    )
    from cfi2sframe.report.size.tables import Cell, Column, Table

#: The number of files that have bars of their own; the others are in the table.
_CHARTED_FILES: Final = 20
#: Tables with more rows scroll inside their frame.
_MAX_TABLE_ROWS: Final = 25
#: Distributions with fewer bins label each of them, others every second.
_MAX_LABELS: Final = 8

_REASONS_TEXT: Final = (
    "Valid call frame information that a version cannot express. A function that cannot be described is left out of "
    "the section; it is never described wrongly."
)


def report_page(report: SizeReport) -> str:
    """Return the page of a report."""
    summary = f"{_counted(report.totals)}, in SFrame versions 1, 2 and 3."
    return _page("SFrame size report", summary, _report_cards(report), _report_sections(report))


def _report_sections(report: SizeReport) -> Iterator[str]:
    totals = report.totals
    if totals.file_count:
        yield from _versions_section(totals)
        yield from _files_section(report)
        yield from _distribution_section(report)
        yield from _functions_sections(report)
        yield from _section("reasons", tables.left_out_table(totals), _REASONS_TEXT)
    yield from _section("failures", tables.failures_table(report.failures), "")


def comparison_page(comparison: SizeComparison) -> str:
    """Return the page of a comparison."""
    old, new = comparison.totals
    summary = f"Before: {_counted(old)}. After: {_counted(new)}."
    cards = _comparison_cards(comparison)
    return _page("SFrame size comparison", summary, cards, _comparison_sections(comparison))


def _comparison_sections(comparison: SizeComparison) -> Iterator[str]:
    changed = [pair for pair in comparison.pairs if pair.change(comparison.version)][:_CHARTED_FILES]
    if changed:
        yield "<section><h2>What changed most</h2>\n"
        yield legend([("hdr", "before"), (f"v{comparison.version}", f"after, version {comparison.version}")])
        yield from bar_chart(
            "changes",
            "Section sizes before and after",
            "Two bars for each of the files whose section changed most; the table of files has the numbers.",
            [_pair_group(pair, comparison.version) for pair in changed],
        )
        yield "</section>\n"
    yield from _section("sums", tables.changes_table(comparison), "")
    yield from _section("files", tables.pairs_table(comparison), "")
    yield from _section("failures", tables.failures_table(comparison.failures), "")


def _page(title: str, summary: str, cards: Iterable[tuple[str, str, str]], sections: Iterable[str]) -> str:
    header = chain([f'<p class="soft">{summary}</p>\n'], _cards(cards))
    return Template(_resource("page.html")).substitute(
        title=escape(title), style=_resource("style.css"), header="".join(header), main="".join(sections)
    )


def _resource(name: str) -> str:
    """Return a file of this package without its first line, which names the licence."""
    return resources.files(__package__).joinpath(name).read_text("utf-8").partition("\n")[2]


def _counted(totals: Totals) -> str:
    return f"{_plural(totals.file_count, 'file')} with {_plural(totals.fde_count, 'FDE')}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# Cards


def _cards(cards: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield '<dl class="cards">\n'
    for label, value, more in cards:
        yield (
            f"<div><dt>{escape(label)}</dt>"
            f'<dd class="value">{escape(value)}</dd><dd class="more">{escape(more)}</dd></div>\n'
        )
    yield "</dl>\n"


def _report_cards(report: SizeReport) -> Iterator[tuple[str, str, str]]:
    number = report.version
    version = report.totals.version(number)
    sizes = version.sizes
    yield "CFI today", human(sizes.base), f"{human(sizes.cfi)} and {human(sizes.eh_frame_hdr)} of search table"
    for maker in MAKERS:
        ratio = version.ratio(maker)
        size = human(version.section(maker).size)
        yield _maker_label(number, maker), size, "" if ratio is None else f"{ratio:.2f} of the CFI"
    growth = version.growth_percent
    yield "Added to the files", "\N{EN DASH}" if growth is None else f"{growth:.2f} %", f"of {human(sizes.file)}"
    left_out = version.left_out_percent
    more = "" if left_out is None else f"{left_out:.3f} % of the functions"
    yield "Left out", f"{version.cfi2sframe.left_out_count:,}", more


def _comparison_cards(comparison: SizeComparison) -> Iterator[tuple[str, str, str]]:
    number = comparison.version
    changes = [(_maker_label(number, maker), comparison.section_change(number, maker)) for maker in MAKERS]
    for label, change in [("CFI + hdr", comparison.base), *changes]:
        more = "new" if change.percent is None else f"{change.percent:+.2f} %, was {human(change.old)}"
        yield label, human(change.new), more


def _maker_label(version: int, maker: Maker) -> str:
    return f"Version {version} by {tables.MAKER_NAMES[maker]}"


def human(size: int) -> str:
    """Return a size in the unit that needs few digits."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1000 or unit == "GiB":
            break
        value /= 1024
    if unit == "bytes":
        return f"{size:,} bytes"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}"


# Sections with charts


def _versions_section(totals: Totals) -> Iterator[str]:
    yield "<section><h2>What each version costs</h2>\n"
    yield "<p>All files together: the sections that they have today, and the sections of each version.</p>\n"
    yield legend(
        [
            ("cfi", "CFI"),
            ("hdr", ".eh_frame_hdr"),
            ("table", "header and function table"),
            ("attributes", "attributes"),
            ("rows", "rows"),
        ]
    )
    groups = [BarGroup("Today", (_today_bar(totals.sizes),))]
    for version in totals.versions:
        if version.file_count:
            few = "" if version.file_count == totals.file_count else f" ({_plural(version.file_count, 'file')})"
            bars = tuple(
                Bar(_segments(version.section(maker)), f"{human(version.section(maker).size)} {name}")
                for maker, name in zip(MAKERS, ("cfi2sframe", "GNU"), strict=True)
            )
            groups.append(BarGroup(f"Version {version.version}{few}", bars))
    yield from bar_chart(
        "versions",
        "Size of all sections by version",
        "A bar for the call frame information of today, and for each version two bars, one as cfi2sframe writes it "
        "and one as GNU as and ld do. The tables that follow have the numbers.",
        groups,
    )
    yield from _table(tables.versions_table(totals))
    yield from _details("Where the bytes go", tables.parts_table(totals))
    yield from _details("Functions and rows", tables.functions_table(totals))
    yield from _details("What a look-up costs", tables.lookups_table(totals))
    yield from _details("Rows by their bytes", tables.row_sizes_table(totals))
    yield from _details("Functions by their rows", tables.rows_table(totals))
    yield "</section>\n"


def _today_bar(sizes: CfiSizes) -> Bar:
    return Bar((Segment("cfi", sizes.cfi), Segment("hdr", sizes.eh_frame_hdr)), human(sizes.base))


def _segments(section: SectionSizes) -> tuple[Segment, ...]:
    parts = section.parts
    return (
        Segment("table", parts.header + parts.function_table),
        Segment("attributes", parts.attributes),
        Segment("rows", parts.rows + parts.padding),
    )


def _files_section(report: SizeReport) -> Iterator[str]:
    charted = report.files[:_CHARTED_FILES]
    skipped = len(_common_folder(charted))
    yield "<section><h2>File by file</h2>\n"
    if len(charted) < report.totals.file_count:
        listed = f"bars for {len(charted):,}, and a line in the table for {len(report.files):,}"
        yield f"<p>Of {report.totals.file_count:,} files: {listed}.</p>\n"
    yield legend(
        [("cfi", "CFI"), ("hdr", ".eh_frame_hdr"), ("v1", "version 1"), ("v2", "version 2"), ("v3", "version 3")]
    )
    yield from bar_chart(
        "files",
        "Call frame information against SFrame, file by file",
        "For each file a bar of its .eh_frame and .eh_frame_hdr, and one for each SFrame version that cfi2sframe can "
        "write. The table of files that follows has the numbers.",
        [_file_group(file, skipped) for file in charted],
    )
    yield from _table(tables.files_table(report), first=-1)
    yield "</section>\n"


def _common_folder(files: tuple[FileSizes, ...]) -> str:
    """Return the folder that all names start with, with its last slash; bars do without it."""
    names = [file.name for file in files]
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]


def _file_group(file: FileSizes, skipped: int) -> BarGroup:
    bars = [_today_bar(file.sizes)]
    for version in file.versions:
        section, ratio = version.cfi2sframe, file.ratio(version.version)
        if section is not None:
            shown = "" if ratio is None else f" ({ratio:.2f})"
            bars.append(Bar((Segment(f"v{version.version}", section.size),), f"{human(section.size)}{shown}"))
    return BarGroup(printable(file.name[skipped:]), tuple(bars))


def _distribution_section(report: SizeReport) -> Iterator[str]:
    """Yield the distribution of the ratios of the files that are listed."""
    ratios = ratio_bins(report.files, report.version)
    if len(report.files) < 3 or not ratios:
        return
    yield f"<section><h2>Ratios of version {report.version} to CFI + hdr</h2>\n"
    listed = _plural(len(report.files), "listed file")
    yield f"<p>The ratios of {listed}. Left of the dashed line SFrame is the smaller of the two.</p>\n"
    yield legend(list(zip((f"v{report.version}", "gnu"), tables.MAKER_NAMES.values(), strict=True)))
    one = 10 - ratios[0].tenths
    is_crowded = len(ratios) > _MAX_LABELS
    yield from column_chart(
        "ratios",
        "Distribution of the ratios over the files",
        "Columns count the files of each tenth of the ratio, for cfi2sframe and for GNU as and ld. The table that "
        "follows has the numbers.",
        [
            Bin("" if is_crowded and (number - one) % 2 else item.label, item.counts)
            for number, item in enumerate(ratios)
        ],
        (f"v{report.version}", "gnu"),
        one,
        "files",
    )
    yield from _details("Table of this chart", tables.ratios_table(report))
    yield "</section>\n"


def _functions_sections(report: SizeReport) -> Iterator[str]:
    costliest, larger = tables.named_functions_tables(report)
    name = next(number for number, column in enumerate(costliest.columns) if column.name == "function")
    text = f"Bytes of a function's record, attribute and rows in version {report.version}, beside its FDE."
    yield from _section("costliest", costliest, text, first=name)
    yield from _section("larger", larger, "", first=name)


def _pair_group(pair: Pair, version: int) -> BarGroup:
    sizes = pair.sizes(version)
    bars = (
        Bar((Segment("hdr", sizes.old),), human(sizes.old)),
        Bar((Segment(f"v{version}", sizes.new),), f"{human(sizes.new)} ({sizes.difference:+,})"),
    )
    return BarGroup(printable(pair.name), bars)


# Tables


def _section(identity: str, table: Table, text: str, *, first: int = 0) -> Iterator[str]:
    """Yield a table as a section of its own, unless it has no rows."""
    if not table.rows:
        return
    yield f'<section id="{identity}"><h2>{escape(table.title)}</h2>\n'
    if text:
        yield f"<p>{escape(text)}</p>\n"
    yield from _table(table, first=first)
    yield "</section>\n"


def _details(summary: str, table: Table) -> Iterator[str]:
    if not table.rows:
        return
    yield f"<details><summary>{escape(summary)}</summary>\n"
    yield from _table(table)
    yield "</details>\n"


def _table(table: Table, *, first: int = 0) -> Iterator[str]:
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
    elif column.name in ("file", "function", "reason"):
        names.append("wrap")
    tone = tone_of(cell, column)
    if tone:
        names.append(tone)
    return f' class="{" ".join(names)}"' if names else ""
