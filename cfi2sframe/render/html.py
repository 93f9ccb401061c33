# SPDX-License-Identifier: Apache-2.0
"""Size reports as one HTML file that needs nothing else, neither network nor script.

`page.html` is the frame and `style.css` the style sheet of both kinds of pages. `page.js` sorts and filters tables; the
page's policy allows this script by its hash, and no other.
"""

from __future__ import annotations

import re
from html import escape
from importlib import resources
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.render.headline import headline, human, remarks, sentence
from cfi2sframe.render.html_charts import (
    changes_section,
    distribution_section,
    top_section,
    versions_section,
)
from cfi2sframe.render.html_tables import table_section
from cfi2sframe.report.size import tables
from cfi2sframe.report.size.answers import (
    comparison_answer,
    counted,
    wide_table,
)
from cfi2sframe.report.size.records import MAKERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.render.origin import Origin
    from cfi2sframe.report.size.records import Maker, SizeComparison, SizeReport

_REASONS_TEXT: Final = (
    "Valid call frame information that a version cannot express. A function that cannot be described is left out of "
    "the section; it is never described wrongly."
)


def report_page(report: SizeReport, origin: Origin | None = None) -> str:
    """Return the page of a report."""
    totals = report.totals
    summary = f"{counted(totals.file_count, 'file')} with {counted(totals.fde_count, 'FDE')}"
    header = chain(_heading(report, summary, origin), _cards(_report_cards(report)))
    return _page("SFrame size report", header, _report_sections(report))


def _report_sections(report: SizeReport) -> Iterator[str]:
    totals = report.totals
    if totals.file_count:
        yield from top_section(report)
        # A single folder says no more than all files.
        if report.folders is not None and len(report.folders.groups) + report.folders.omitted_count > 1:
            yield from table_section("folders", wide_table(report, "folder"), "")
        yield from table_section("files", wide_table(report), "")
        yield from versions_section(totals)
        yield from distribution_section(report)
        yield from _functions_sections(report)
        yield from table_section("reasons", tables.left_out_table(totals), _REASONS_TEXT)
    yield from table_section("failures", tables.failures_table(report.failures), "")


def _functions_sections(report: SizeReport) -> Iterator[str]:
    costliest, larger = tables.named_functions_tables(report)
    name = next(number for number, column in enumerate(costliest.columns) if column.name == "function")
    text = f"Bytes of a function's record, attribute and rows in version {report.version}, beside its FDE."
    yield from table_section("costliest", costliest, text, first=name)
    yield from table_section("larger", larger, "", first=name)


def comparison_page(comparison: SizeComparison, origin: Origin | None = None) -> str:
    """Return the page of a comparison."""
    old, new = (counted(totals.file_count, "file") for totals in comparison.totals)
    header = chain(_heading(comparison, f"{old} before, {new} after", origin), _cards(_comparison_cards(comparison)))
    return _page("SFrame size comparison", header, _comparison_sections(comparison))


def _comparison_sections(comparison: SizeComparison) -> Iterator[str]:
    yield from changes_section(comparison)
    files = comparison_answer(comparison)
    yield from table_section("files", files._replace(title="Files"), "", first=-1)
    yield from table_section("sums", tables.changes_table(comparison), "")
    yield from table_section("failures", tables.failures_table(comparison.failures), "")


def _page(title: str, header: Iterable[str], sections: Iterable[str]) -> str:
    script = _resource("page.js")
    return Template(_resource("page.html")).substitute(
        title=escape(title),
        style=_resource("style.css"),
        script=script,
        script_hash=_hash(script),
        header="".join(header),
        main="".join(sections),
    )


def _hash(script: str) -> str:
    """Return a script's hash as a content security policy has it."""
    import base64
    import hashlib

    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _resource(name: str) -> str:
    """Return a file of this package without its first line, which names the licence."""
    return resources.files(__package__).joinpath(name).read_text("utf-8").partition("\n")[2]


# The head of a page


def _heading(report: SizeReport | SizeComparison, summary: str, origin: Origin | None) -> Iterator[str]:
    """Yield the headline, what it does not count, and where the report comes from."""
    yield f'<p class="headline">{_unbroken(escape(sentence(headline(report))))}</p>\n'
    more = " ".join(remarks(report))
    if more:
        yield f"<p>{escape(more)}</p>\n"
    yield '<dl class="origin">\n'
    yield _origin_line("Measured", f"{origin.paths}: {summary}" if origin else summary)
    if origin is not None:
        yield _origin_line("By", f"{origin.program}, {origin.options}")
        yield _origin_line("On", f"{origin.machine}, {origin.time}")
    yield "</dl>\n"


def _unbroken(text: str) -> str:
    """Return a sentence in which numbers stay with their units."""
    return re.sub(r"\d[\d,.]* (?:bytes?\b|[KMG]iB|%)", r'<span class="unit">\g<0></span>', text)


def _origin_line(label: str, text: str) -> str:
    return f"<div><dt>{label}</dt><dd>{escape(printable(text))}</dd></div>\n"


def _cards(cards: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield '<dl class="cards">\n'
    for label, value, more in cards:
        yield (
            f"<div><dt>{escape(label)}</dt>"
            f'<dd class="value">{escape(value)}</dd><dd class="more">{escape(more)}</dd></div>\n'
        )
    yield "</dl>\n"


def _report_cards(report: SizeReport) -> Iterator[tuple[str, str, str]]:
    """Yield cards that are all about the files that the report's version defines."""
    number = report.version
    version = report.totals.version(number)
    sizes = version.sizes
    yield "CFI + hdr today", human(sizes.base), f"{human(sizes.cfi)} and {human(sizes.eh_frame_hdr)} of search table"
    for maker in MAKERS:
        ratio = version.ratio(maker)
        size = human(version.section(maker).size)
        yield _maker_label(number, maker), size, "" if ratio is None else f"{ratio:.2f} of CFI + hdr"
    ours, gnu = version.cfi2sframe.lookup_cost, version.gnu.lookup_cost
    more = f"on average, {ours.max_rows:,} at most; by GNU {gnu.mean_rows:.1f}, {gnu.max_rows:,} at most"
    yield "Rows a look-up walks", f"{ours.mean_rows:.1f}", more
    yield "FDEs left out", f"{version.cfi2sframe.left_out_count:,}", f"of {version.fde_count:,}"


def _comparison_cards(comparison: SizeComparison) -> Iterator[tuple[str, str, str]]:
    number = comparison.version
    changes = [(_maker_label(number, maker), comparison.section_change(number, maker)) for maker in MAKERS]
    for label, change in [("CFI + hdr", comparison.base), *changes]:
        more = "new" if change.percent is None else f"{change.percent:+.2f} %, was {human(change.old)}"
        yield label, human(change.new), more


def _maker_label(version: int, maker: Maker) -> str:
    return f"Version {version} by {tables.MAKER_NAMES[maker]}"
