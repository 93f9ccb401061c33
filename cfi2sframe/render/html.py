# SPDX-License-Identifier: Apache-2.0
"""Size reports as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.render.cells import cell_text, is_number
from cfi2sframe.render.charts import Bar, Bin, Group, Piece, bar_chart, column_chart, legend
from cfi2sframe.render.style import STYLE
from cfi2sframe.report.size import tables
from cfi2sframe.report.size.records import MAKERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.report.size.records import Comparison, FileSizes, Layout, Pair, SizeReport, Totals
    from cfi2sframe.report.size.tables import Cell, Column, Table

#: Files that have bars of their own; the others are in the table.
_CHARTED_FILES: Final = 20
#: Longer tables scroll inside their frame.
_TALL_FROM: Final = 25
#: The distribution's classes: tenths up to this ratio, and one for all above.
_LAST_TENTH: Final = 15
_PRODUCT: Final = "cfi2sframe"


def report_page(report: SizeReport) -> Iterator[str]:
    """Yield the page of a report, piece by piece."""
    totals = report.totals
    yield from _head("SFrame size report")
    yield f'<p class="soft">{_counted(totals)}, in SFrame versions 1, 2 and 3.</p>\n'
    yield from _cards(_report_cards(report))
    yield "</header>\n<main id=main>\n"
    if totals.file_count:
        yield from _versions_section(totals)
        yield from _files_section(report)
        yield from _distribution_section(report)
        yield from _functions_sections(report)
        yield from _section("reasons", tables.left_out_table(totals), _REASONS_TEXT)
    yield from _section("failures", tables.failures_table(report.failures), "")
    yield _FOOT


def comparison_page(comparison: Comparison) -> Iterator[str]:
    """Yield the page of a comparison."""
    old, new = comparison.totals
    yield from _head("SFrame size comparison")
    yield f'<p class="soft">Before: {_counted(old)}. After: {_counted(new)}.</p>\n'
    yield from _cards(_comparison_cards(comparison))
    yield "</header>\n<main id=main>\n"
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
    yield _FOOT


_REASONS_TEXT: Final = (
    "Valid call frame information that a version has no words for. A function that cannot be described is left out of "
    "the section; it is never described wrongly."
)
_FOOT: Final = (
    "</main>\n<footer><p>Made by cfi2sframe. \N{LEFT DOUBLE QUOTATION MARK}GNU as + ld"
    "\N{RIGHT DOUBLE QUOTATION MARK} is the section that GNU binutils would make of the same functions: 2.40 for "
    "version 1, 2.44 for version 2, 2.46 and later for version 3.</p></footer>\n</body>\n</html>\n"
)


def _head(title: str) -> Iterator[str]:
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the charts</a>\n<header>\n<h1>{escape(title)}</h1>\n'
    )


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
    totals = report.totals
    number = report.version
    version = totals.version(number)
    sizes = version.sizes
    yield "CFI today", human(sizes.base), f"{human(sizes.cfi)} and {human(sizes.eh_frame_hdr)} of search table"
    for maker in MAKERS:
        ratio = version.ratio(maker)
        label = f"Version {number} by {tables.MAKER_NAMES[maker]}"
        layout = version.layout(maker)
        yield label, human(layout.size), "" if ratio is None else f"{ratio:.2f} of the CFI"
    share = tables.quotient(version.cfi2sframe.size, sizes.file, 100)
    yield "Added to the files", "\N{EN DASH}" if share is None else f"{share:.2f} %", f"of {human(sizes.file)}"
    left_out = version.cfi2sframe.left_out_count
    lost = tables.quotient(left_out, left_out + version.cfi2sframe.function_count, 100)
    yield "Left out", f"{left_out:,}", "" if lost is None else f"{lost:.3f} % of the functions"


def _comparison_cards(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    number = comparison.version
    old, new = comparison.totals
    for label, before, after in (
        ("CFI + hdr", old.sizes.base, new.sizes.base),
        *(
            (
                f"Version {number} by {tables.MAKER_NAMES[maker]}",
                old.version(number).layout(maker).size,
                new.version(number).layout(maker).size,
            )
            for maker in MAKERS
        ),
    ):
        change = tables.quotient(after - before, before, 100)
        yield label, human(after), "new" if change is None else f"{change:+.2f} %, was {human(before)}"


def human(size: int) -> str:
    """Return a size in a unit that leaves few digits."""
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
    yield "<p>All files together: what they have today, and what a section of each version takes.</p>\n"
    yield legend(
        [
            ("cfi", "CFI"),
            ("hdr", ".eh_frame_hdr"),
            ("table", "header and function table"),
            ("attributes", "attributes"),
            ("rows", "rows"),
        ]
    )
    sizes = totals.sizes
    groups = [_today_group("Today", sizes.cfi, sizes.eh_frame_hdr, human(sizes.base))]
    for version in totals.versions:
        if version.file_count:
            short = "" if version.file_count == totals.file_count else f" ({_plural(version.file_count, 'file')})"
            bars = tuple(
                Bar(_part_pieces(version.layout(maker)), f"{human(version.layout(maker).size)} {name}")
                for maker, name in (("cfi2sframe", _PRODUCT), ("gnu", "GNU"))
                if maker in MAKERS
            )
            groups.append(Group(f"Version {version.version}{short}", bars))
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
    yield from _details("Rows by their bytes", tables.row_sizes_table(totals))
    yield from _details("Functions by their rows", tables.rows_table(totals))
    yield "</section>\n"


def _today_group(name: str, cfi: int, hdr: int, label: str) -> Group:
    return Group(name, (Bar((Piece("cfi", cfi), Piece("hdr", hdr)), label),))


def _part_pieces(layout: Layout) -> tuple[Piece, ...]:
    parts = layout.parts
    return (
        Piece("table", parts.header + parts.function_table),
        Piece("attributes", parts.attributes),
        Piece("rows", parts.rows + parts.padding),
    )


def _files_section(report: SizeReport) -> Iterator[str]:
    charted = report.files[:_CHARTED_FILES]
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
        [_file_group(file, len(_common_folder(charted))) for file in charted],
    )
    yield from _table(tables.files_table(report), first=-1)
    yield "</section>\n"


def _common_folder(files: tuple[FileSizes, ...]) -> str:
    """Return the folder that all names start with, with its last slash; it tells no file from another."""
    names = [file.name for file in files]
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, same) + 1]


def _file_group(file: FileSizes, skipped: int) -> Group:
    sizes = file.sizes
    bars = list(_today_group("", sizes.cfi, sizes.eh_frame_hdr, human(sizes.base)).bars)
    for version in file.versions:
        layout, ratio = version.cfi2sframe, file.ratio(version.version)
        if layout is not None:
            shown = "" if ratio is None else f" ({ratio:.2f})"
            bars.append(Bar((Piece(f"v{version.version}", layout.size),), f"{human(layout.size)}{shown}"))
    return Group(printable(file.name[skipped:]), tuple(bars))


def _distribution_section(report: SizeReport) -> Iterator[str]:
    """Yield how the ratios are spread, of the files that are listed."""
    bins = ratio_bins(report.files, report.version)
    if len(report.files) < 3 or not bins:
        return
    yield f"<section><h2>Ratios of version {report.version} to CFI + hdr</h2>\n"
    listed = _plural(len(report.files), "listed file")
    yield f"<p>Where the {listed} lie. Left of the dashed line SFrame is the smaller of the two.</p>\n"
    yield legend([(f"v{report.version}", _PRODUCT), ("gnu", "GNU as + ld")])
    first = next((number for number, item in enumerate(bins) if item.label == "1.0"), None)
    table = tables.Table(
        "Files by their ratio",
        (tables.Column("ratio from", "text"), tables.Column(_PRODUCT), tables.Column("GNU as + ld")),
        tuple((item.label, *item.counts) for item in bins),
        total=("total", *(sum(column) for column in zip(*(item.counts for item in bins), strict=True))),
    )
    yield from column_chart(
        "ratios",
        "Distribution of the ratios over the files",
        "Columns count the files of each tenth of the ratio, for cfi2sframe and for GNU as and ld. The table that "
        "follows has the numbers.",
        [
            item if len(bins) < 9 or (number - (first or 0)) % 2 == 0 else item._replace(label="")
            for number, item in enumerate(bins)
        ],
        (f"v{report.version}", "gnu"),
        first,
        "files",
    )
    yield from _details("Table of this chart", table)
    yield "</section>\n"


def ratio_bins(files: Iterable[FileSizes], version: int) -> list[Bin]:
    """Return the classes of the distribution, without the empty ones at either end but with 1.0 among them."""
    counts = {number: [0, 0] for number in range(_LAST_TENTH + 1)}
    for file in files:
        for series, maker in enumerate(MAKERS):
            ratio = file.ratio(version, maker)
            if ratio is not None:
                # Hundredths first: 0.7 * 10 is not quite 7.
                counts[min(int(round(ratio * 100, 6)) // 10, _LAST_TENTH)][series] += 1
    used = [number for number, pair in counts.items() if any(pair)]
    if not used:
        return []
    numbers = range(min(*used, 10), max(*used, 10) + 1)
    return [Bin(f"{number / 10:.1f}{'+' * (number == _LAST_TENTH)}", (*counts[number],)) for number in numbers]


def _functions_sections(report: SizeReport) -> Iterator[str]:
    costliest, larger = tables.named_functions_tables(report)
    name = next(number for number, column in enumerate(costliest.columns) if column.name == "function")
    text = f"Bytes of a function's record, attribute and rows in version {report.version}, beside its FDE."
    yield from _section("costliest", costliest, text, first=name)
    yield from _section("larger", larger, "", first=name)


def _pair_group(pair: Pair, version: int) -> Group:
    old, new = pair.sizes(version)
    bars = (
        Bar((Piece("hdr", old),), human(old)),
        Bar((Piece(f"v{version}", new),), f"{human(new)} ({new - old:+,})"),
    )
    return Group(printable(pair.name), bars)


# Tables


def _section(identity: str, table: Table, text: str, *, first: int = 0) -> Iterator[str]:
    """Yield a table as a section of its own; nothing when it has no rows."""
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
    """Yield a table in a frame that scrolls. Column number `first` heads the rows, and stands first."""
    order = list(range(len(table.columns)))
    order.insert(0, order.pop(first))
    tall = " tall" if len(table.rows) > _TALL_FROM else ""
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
    if isinstance(cell, int | float) and (
        (column.kind == "change" and cell) or (column.kind == "ratio" and "rows" not in column.name)
    ):
        limit = 1 if column.kind == "ratio" else 0
        names.append("better" if cell <= limit else "worse")
    return f' class="{" ".join(names)}"' if names else ""
