# SPDX-License-Identifier: Apache-2.0
"""The sections of a size report's page that have charts, with their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.render.charts import Bar, BarGroup, Bin, Segment, bar_chart, column_chart, legend
from cfi2sframe.render.headline import human
from cfi2sframe.render.html_tables import details, table_frame
from cfi2sframe.report.size import tables
from cfi2sframe.report.size.answers import common_folder, counted
from cfi2sframe.report.size.records import MAKERS, quotient
from cfi2sframe.report.size.totals import figures_of, ratio_bins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.report.size.records import (
        CfiSizes,
        Pair,
        SectionSizes,
        SizeComparison,
        SizeReport,
        Totals,
    )
    from cfi2sframe.report.size.totals import Figures

#: The number of lines that have bars of their own; the others are in the tables.
TOP_COUNT: Final = 5
#: Distributions with fewer bins label each of them, others every second.
_MAX_LABELS: Final = 8


def versions_section(totals: Totals) -> Iterator[str]:
    """Yield what each version costs, with the tables of everything that was counted."""
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
            few = "" if version.file_count == totals.file_count else f" ({counted(version.file_count, 'file')})"
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
    yield from table_frame(tables.versions_table(totals))
    yield from details("Where the bytes go", tables.parts_table(totals))
    yield from details("Functions and rows", tables.functions_table(totals))
    yield from details("What a look-up costs", tables.lookups_table(totals))
    yield from details("Rows by their bytes", tables.row_sizes_table(totals))
    yield from details("Functions by their rows", tables.rows_table(totals))
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


def top_section(report: SizeReport) -> Iterator[str]:
    """Yield bars for the five files that come first."""
    shown = report.files[:TOP_COUNT]
    number = report.version
    yield f"<section><h2>The first {len(shown)} files</h2>\n" if len(shown) > 1 else "<section><h2>Sizes</h2>\n"
    yield legend([("cfi", "CFI"), ("hdr", ".eh_frame_hdr"), (f"v{number}", _by_us(number)), ("gnu", "by GNU as + ld")])
    skipped = len(common_folder([item.name for item in shown]))
    yield from bar_chart(
        "top",
        f"Call frame information against version {number}",
        "For each a bar of its .eh_frame and .eh_frame_hdr, one of the SFrame section that cfi2sframe writes, and one "
        "of that of GNU as and ld. The tables that follow have the numbers.",
        [_group(item.name[skipped:], figures_of(item, number), number) for item in shown],
    )
    yield "</section>\n"


def _by_us(version: int) -> str:
    return f"version {version} by cfi2sframe"


def _group(name: str, figures: Figures, version: int) -> BarGroup:
    bars = [_today_bar(figures.sizes)]
    for section, style in ((figures.ours, f"v{version}"), (figures.gnu, "gnu")):
        if section is not None:
            share = quotient(section.size, figures.sizes.base)
            ratio = "" if share is None else f", ratio {share:.2f}"
            bars.append(Bar((Segment(style, section.size),), f"{human(section.size)}{ratio}"))
    return BarGroup(printable(name), tuple(bars))


def distribution_section(report: SizeReport) -> Iterator[str]:
    """Yield the distribution of the ratios of the files that are listed."""
    ratios = ratio_bins(report.files, report.version)
    if len(report.files) < 3 or not ratios:
        return
    yield f"<section><h2>Ratios of version {report.version} to CFI + hdr</h2>\n"
    listed = counted(len(report.files), "listed file")
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
    yield from details("Table of this chart", tables.ratios_table(report))
    yield "</section>\n"


def changes_section(comparison: SizeComparison) -> Iterator[str]:
    """Yield bars for the files whose section changed most; nothing when none changed."""
    version = comparison.version
    changed = [pair for pair in comparison.pairs if pair.change(version)][:TOP_COUNT]
    if not changed:
        return
    yield "<section><h2>What changed most</h2>\n"
    yield legend([("hdr", f"before, {_by_us(version)}"), (f"v{version}", "after")])
    yield from bar_chart(
        "changes",
        "Section sizes before and after",
        "Two bars for each of the files whose section changed most; the table of files has the numbers.",
        [_pair_group(pair, version) for pair in changed],
    )
    yield "</section>\n"


def _pair_group(pair: Pair, version: int) -> BarGroup:
    sizes = pair.sizes(version)
    bars = (
        Bar((Segment("hdr", sizes.old),), human(sizes.old)),
        Bar((Segment(f"v{version}", sizes.new),), f"{human(sizes.new)} ({sizes.difference:+,})"),
    )
    return BarGroup(printable(pair.name), bars)
