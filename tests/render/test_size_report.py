# SPDX-License-Identifier: Apache-2.0
"""Every format of a size report has the same numbers, and names in it are harmless."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe.cli.progress import Progress
from cfi2sframe.printable import printable
from cfi2sframe.render.cells import cell_text
from cfi2sframe.render.csv import write_comparison, write_folders, write_report
from cfi2sframe.render.headline import headline, human, remarks
from cfi2sframe.render.html import comparison_page, report_page
from cfi2sframe.render.json import comparison_data, report_data
from cfi2sframe.render.markdown import escape, render_markdown
from cfi2sframe.render.origin import origin_of
from cfi2sframe.render.table import render_report, render_tables
from cfi2sframe.report.size.answers import answer_table, comparison_answer, wide_table
from cfi2sframe.report.size.records import MAKERS, Failure, FileSizes, Parts, SizeComparison, SizeReport
from cfi2sframe.report.size.tables import comparison_tables, report_tables
from cfi2sframe.report.size.totals import build_comparison, build_report
from tests.support.sizes import (
    check_report,
    library,
    measured,
    s390x_library,
    sample_comparison,
    sample_files,
)

if TYPE_CHECKING:
    from cfi2sframe.conversion import Level

SCHEMA = Path(__file__).resolve().parents[2] / "cfi2sframe/schemas/size-report.schema.json"


@pytest.fixture(name="report", scope="module")
def _report() -> SizeReport:
    return build_report(sample_files(), version=3, function_count=3)


@pytest.fixture(name="comparison", scope="module")
def _comparison() -> SizeComparison:
    return sample_comparison()


def test_nothing_at_all() -> None:
    report = build_report([], version=3)
    check_report(report)
    assert list(render_tables(report_tables(report))) == []
    assert "</html>" in report_page(report)
    json.dumps(report_data(report), allow_nan=False)


# Formats


def _check_schema(data: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(data, allow_nan=False)))


def test_json_of_reports(report: SizeReport) -> None:
    _check_schema(report_data(report))


def test_every_format_has_the_rows_that_a_look_up_walks(report: SizeReport) -> None:
    means = {
        f"{total.section(maker).lookup_cost.mean_rows:.2f}" for total in report.totals.versions for maker in MAKERS
    }
    table = next(table for table in report_tables(report) if table.title == "What a look-up costs")
    assert {cell_text(row[3], "ratio") for row in table.rows} == means
    data = report_data(report)
    for version in data["totals"]["versions"]:
        for maker in MAKERS:
            assert f"{version[maker]['lookup']['mean_rows']:.2f}" in means
    texts = ("\n".join(render_tables(report_tables(report))), "\n".join(render_markdown(report_tables(report))))
    for text in (*texts, report_page(report)):
        assert "What a look-up costs" in text
        assert all(mean in text for mean in means)


def test_folders_in_every_format() -> None:
    files = [result for result in sample_files() if isinstance(result, FileSizes)]
    names = {file.name: file.name.rpartition("/")[0] or "=none" for file in files}
    report = build_report(files, version=3, folders=names)
    check_report(report)
    data = report_data(report)
    _check_schema(data)
    assert [group["name"] for group in data["groupings"][0]["groups"]] == ["lib", "=none"]
    assert report.folders is not None
    out = io.StringIO()
    write_folders(report.folders, out)
    lines = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [(line["folder"], line["files"]) for line in lines] == [("lib", "4"), ("'=none", "2")]
    for line, group in zip(lines, report.folders.groups, strict=True):
        for total in group.totals.versions:
            assert int(line[f"v{total.version}_gnu_size"]) == total.gnu.size
    text = list(render_tables([answer_table(report, "folder")]))
    assert text[0].split() == [".sframe", "ratio", "of", "file", "GNU", "as+ld", "rows", "files", "folder"]
    assert text[3].endswith("  6  2 folders")
    headings = re.findall("<h2>([^<]*)</h2>", report_page(report))
    assert headings[:3] == ["The first 5 files", "Folders", "Files"]


# The answer


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [
        (3, None, r"version 3 adds \d+ bytes \(\d\.\d %\) to \d\d\.\d KiB; GNU as \+ ld would add 1\.\d\d KiB"),
        (2, "s", r"version 2 at -Os adds .*; GNU as \+ ld would add .*"),
        (1, 2, r"version 1 adds .*"),
    ],
)
def test_the_headline(version: int, level: Level | None, text: str) -> None:
    report = build_report(sample_files(), version=version, level=level)
    assert re.fullmatch(text, headline(report))
    assert next(iter(render_report(headline(report), [answer_table(report, "file")]))) == headline(report)


def test_headlines_of_nothing() -> None:
    assert headline(build_report([], version=3)) == "no file was measured"
    report = build_report([measured("s390x.so", s390x_library())], version=1)
    assert headline(report) == "version 1 does not define the ABI of these files"
    assert list(remarks(report)) == ["Version 1 does not define the ABI of 1 file."]
    assert [line.split() for line in render_tables([answer_table(report, "file")])][1] == ["s390x.so"]


def test_files_that_stay_the_same_are_counted() -> None:
    old = [measured(name, library(2)) for name in "abcd"]
    new = [measured("a", library(5)), *old[1:]]
    table = comparison_answer(build_comparison(old, new, version=3))
    assert ([row[-1] for row in table.rows], table.note) == (["a"], "3 files stay the same.")
    table = comparison_answer(build_comparison(old, new, version=3, top=2))
    assert ([row[-1] for row in table.rows], table.note) == (["a"], "3 files stay the same.")
    table = comparison_answer(build_comparison(old, new, version=3, top=1))
    assert table.note == "3 more files are in the total (--top all lists them)."
    assert table.total is not None
    assert table.total[-1] == "4 files"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((2, 9), r"version 3 grows by \d+ bytes \(\+\d+\.\d %\), from \d+ bytes to \d+ bytes; the CFI grows by .*"),
        ((9, 2), r"version 3 shrinks by \d+ bytes \(-\d+\.\d %\), .*; the CFI shrinks by .*"),
        ((2, 2), r"version 3 stays at \d+ bytes; the CFI stays the same"),
    ],
)
def test_headlines_of_comparisons(counts: tuple[int, int], text: str) -> None:
    old, new = (measured("a.so", library(count)) for count in counts)
    assert re.fullmatch(text, headline(build_comparison([old], [new], version=3)))


def test_remarks(report: SizeReport) -> None:
    assert list(remarks(report)) == [
        "Functions: 2 left out.",
        "Skipped: 1 file (no call frame information).",
        "Not measured: 1 file.",
    ]
    more = [*report.failures, Failure("x", "a \x1b[31m", is_expected=True), Failure("y", "b", is_expected=True)]
    more.append(Failure("z", "b", is_expected=True))
    text = list(remarks(report._replace(failures=tuple(more))))[1]
    assert text == r"Skipped: 4 files (2: b; 1: a \x1b[31m; 1: no call frame information)."


def test_the_first_table_fits_a_terminal() -> None:
    """Without its names, which come last and are not cut."""
    file = measured("a.so", library(40))
    long = "usr/lib/x86_64-linux-gnu/" + "long" * 30
    big = tuple(
        version._replace(
            cfi2sframe=version.cfi2sframe and version.cfi2sframe._replace(parts=Parts(rows=999_999_999)),
            gnu=version.gnu and version.gnu._replace(parts=Parts(rows=999_999_999)),
        )
        for version in file.versions
    )
    sizes = file.sizes._replace(file=9_999_999_999, cfi=999_999_999)
    report = build_report([file._replace(name=long, versions=big, sizes=sizes), file._replace(name="b")], version=3)
    table = answer_table(report, "file")
    assert 5 <= len(table.columns) <= 7
    lines = list(render_tables([table]))
    assert lines[1].endswith(f"  {long}")
    assert len(lines[1]) - len(long) <= 60
    assert max(map(len, lines[2:])) <= 80


def test_names_share_their_folder(report: SizeReport) -> None:
    files = [file for file in report.files if file.name.startswith("lib/")]
    table = answer_table(build_report(files, version=3), "file")
    assert table.columns[-1].name == "file, in lib/"
    assert {row[-1] for row in table.rows} == {file.name.removeprefix("lib/") for file in files}
    assert table.total is not None
    assert table.total[-1] == "4 files"
    single = answer_table(build_report(files[:1], version=3), "file")
    assert (single.columns[-1].name, single.rows[0][-1], single.total) == ("file", files[0].name, None)


def test_json_of_comparisons(comparison: SizeComparison) -> None:
    _check_schema(comparison_data(comparison))


def test_the_schema_refuses_what_is_not_described(report: SizeReport) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    changes: tuple[dict[str, Any], ...] = ({"more": 1}, {"schema": 1}, {"files": [{}]})
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            _check_schema(report_data(report) | change)


def test_csv_of_reports(report: SizeReport) -> None:
    out = io.StringIO()
    write_report(report, out)
    heading = next(csv.reader(io.StringIO(out.getvalue())))
    assert len(set(heading)) == len(heading)
    lines = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert len(lines) == len(report.files) + len(report.failures)
    for line, file in zip(lines, report.files, strict=False):
        assert (line["file"], int(line["cfi_size"])) == (printable(file.name), file.sizes.cfi)
        for version in file.versions:
            for maker in ("cfi2sframe", "gnu"):
                prefix = f"v{version.version}_{maker}_"
                names = ("header", "function_table", "attributes", "rows", "padding")
                parts = [line[f"{prefix}{name}_size"] for name in names]
                if version.cfi2sframe is None:
                    assert {*parts, line[prefix + "size"]} == {""}
                else:
                    assert int(line[prefix + "size"]) == sum(map(int, parts))
                    walked, code = (int(line[f"{prefix}lookup_{name}"]) for name in ("walked_count", "code_size"))
                    assert float(line[prefix + "lookup_mean_rows"]) == round(walked / max(code, 1), 4)
    assert [line["error"] for line in lines[-2:]] == ["truncated", "no call frame information"]


def test_csv_of_comparisons(comparison: SizeComparison) -> None:
    out = io.StringIO()
    write_comparison(comparison, out)
    lines = {line["file"]: line for line in csv.DictReader(io.StringIO(out.getvalue()))}
    grown = lines["a.so"]
    assert int(grown["new_v3_cfi2sframe"]) - int(grown["old_v3_cfi2sframe"]) == int(grown["change"])
    assert lines["new.so"]["old_cfi"] == ""


HOSTILE = (
    "=HYPERLINK(0)",
    "+1",
    "-1",
    "@SUM(A1)",
    "\uff1d1",
    "\t=1",
    "\r\n=1",
    "\x1b]0;title\x07\x9b2J",
    "\u202egnp.exe",
    "`|](x) [a](http://b.example) www.b.example <img src=x onerror=x> $x$ &lt; #1 ![a](b)",
    "</title></svg><script>alert(1)</script>\"'",
)


def _hostile(name: str) -> tuple[SizeReport, SizeComparison]:
    named = measured("a.so", library(2))._replace(name=name)
    function = named.functions.costliest[0]._replace(name=name, file=name)
    named = named._replace(functions=named.functions._replace(costliest=(function,), larger=(function,)))
    results: list[FileSizes | Failure] = [named, Failure(name, name)]
    report = build_report(results, version=3, function_count=3)
    return report, build_comparison([named, measured("b.so", library(1))], results, version=3)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_in_csv(name: str) -> None:
    report, comparison = _hostile(name)
    out, compared = io.StringIO(), io.StringIO()
    write_report(report, out)
    write_comparison(comparison, compared)
    for text in (out.getvalue(), compared.getvalue()):
        assert text.replace("\r\n", "").isprintable()
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not any(cell.startswith(("=", "+", "@", "\uff1d")) for cell in cells)
        # What begins with a minus is a number.
        assert all(int(cell) < -1 for cell in cells if cell.startswith("-"))


def test_changes_stay_numbers_in_csv() -> None:
    out = io.StringIO()
    write_comparison(build_comparison([measured("a", library(9))], [measured("a", library(2))], version=3), out)
    (line,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert int(line["change"]) < 0


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_in_text_and_pages(name: str) -> None:
    report, comparison = _hostile(name)
    for tables in (list(report_tables(report)), list(comparison_tables(comparison))):
        assert all(line.isprintable() for line in render_tables(tables))
        lines = list(render_markdown(tables))
        assert all(line.isprintable() for line in lines)
        plain = [re.sub(r"\\.", "", line) for line in lines]
        # A row without its escaped characters has cells only: no markup, and nothing that becomes a link by itself.
        assert not any(re.search(r"[`\[\]<>$&]|://|www\.", line) for line in plain)
        for number, line in enumerate(lines):
            if line.startswith("|"):
                assert plain[number].count("|") in {len(table.columns) + 1 for table in tables}
    for page in (report_page(report), comparison_page(comparison)):
        assert page.replace("\n", "").isprintable()
        assert page.count("<script") == 1
        assert not re.search(r"<img|</title></svg><|<[^>]*alert", page)


def test_terminal_tables_align(report: SizeReport) -> None:
    lines = list(render_tables(report_tables(report)))
    assert not any("\x1b" in line for line in lines)
    start = lines.index("Size by version")
    heading, *rows = lines[start + 1 : start + 8]
    end = heading.index(".sframe") + len(".sframe")
    assert len(rows) == 6
    for row in rows:
        assert row[end - 1].isdigit()
        assert row[end] == " "


def test_terminal_colours_have_no_width(report: SizeReport) -> None:
    plain = list(render_tables(report_tables(report)))
    coloured = list(render_tables(report_tables(report), colour=True))
    assert plain != coloured
    for code in ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        coloured = [line.replace(code, "") for line in coloured]
    assert [line.rstrip() for line in coloured] == plain


def test_markdown(report: SizeReport) -> None:
    text = "\n".join(render_markdown(report_tables(report)))
    for block in text.split("\n\n"):
        lines = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
    assert r"\<odd\> \& \\x1b\[31mred\|.so" in text
    assert escape("a_b*c") == r"a\_b\*c"


class _Page(HTMLParser):
    """Collects the elements of a page, which must be balanced."""

    VOID = frozenset({"meta", "rect", "line"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _parse(page: str) -> _Page:
    parser = _Page()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _check_page(page: _Page) -> None:
    """A page has no external content, has what screen readers need, and its identifiers are unique.

    It has one script, which its policy allows by its hash. Without it the page says all that it says with it.
    """
    names = [tag for tag, _ in page.tags]
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "input", "button"} & set(names)
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    script = page.text[page.text.index(next(text for text in page.text if "use strict" in text))]
    policies = [attributes["content"] or "" for _, attributes in page.tags if "http-equiv" in attributes]
    assert policies == [
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_sha256(script)}'",
    ]
    for _, attributes in page.tags:
        assert not {"src", "srcset", "data", "action"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert all(identity in identities for identity in (attributes["aria-labelledby"] or "").split())
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
    assert names.count("table") == names.count("caption") > 0
    assert names.count("h1") == names.count("main") == 1
    assert ("html", {"lang": "en"}) in page.tags


def test_html_of_reports(report: SizeReport) -> None:
    text = report_page(report)
    page = _parse(text)
    _check_page(page)
    assert sum(tag == "svg" for tag, _ in page.tags) == 3
    assert "url(" not in text
    assert "@import" not in text
    words = " ".join(page.text)
    assert "\x1b" not in words
    assert r"lib/<odd> & \x1b[31mred|.so" in words
    for name in ("large.so", "CFA is an expression", "truncated", "Costliest functions"):
        assert name in words


def test_a_page_says_where_it_was_made(report: SizeReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    origin = origin_of("cfi2sframe 9", ["<a>", *"bcdef"], ["-Os"])
    page = _parse(report_page(report, origin))
    _check_page(page)
    words = " ".join(page.text)
    for text in ("<a> b c d e and 1 more: 6 files with ", "cfi2sframe 9, -Os", "1970-01-01 00:00 UTC"):
        assert text in words
    assert words.index("Version 3 adds") < words.index("cfi2sframe 9") < words.index("CFI + hdr today")


def test_the_ratio_is_the_second_column(report: SizeReport, comparison: SizeComparison) -> None:
    assert [column.name for column in wide_table(report).columns][:3] == ["file", "ratio", ".sframe"]
    assert comparison_answer(comparison).columns[1].name == "in %"


def test_html_of_comparisons(comparison: SizeComparison) -> None:
    page = _parse(comparison_page(comparison))
    _check_page(page)
    words = " ".join(page.text)
    for name in ("grew", "shrank", "added", "removed", "new: bad.so"):
        assert name in words


def test_bars_stay_inside(report: SizeReport) -> None:
    page = _parse(report_page(report))
    for tag, attributes in page.tags:
        if tag == "rect":
            x, width = (float((attributes[name] or "").rstrip("%")) for name in ("x", "width"))
            assert 0 <= x <= x + width <= 100.01


def test_comparison_tables(comparison: SizeComparison) -> None:
    sums, pairs, failures = comparison_tables(comparison)
    for row in (*sums.rows, *((row[6], *row[:4]) for row in pairs.rows)):
        _, old, new, change, _ = row
        assert isinstance(old, int)
        assert isinstance(new, int)
        assert change == new - old
    assert len(failures.rows) == 2


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1024, "1.00 KiB"), (10 << 20, "10.0 MiB"), (700 << 20, "700 MiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert human(size) == text


def test_cells() -> None:
    assert cell_text(1234567, "number") == "1,234,567"
    assert (cell_text(-5000, "change"), cell_text(5, "change"), cell_text(0, "change")) == ("-5,000", "+5", "0")
    assert (cell_text(None, "ratio"), cell_text(0.987, "ratio"), cell_text(2, "percent")) == ("", "0.99", "2.00 %")


def test_progress() -> None:
    progress = Progress(1000, 400, 10.0)
    assert progress.line(10.0).startswith("[" + "." * 24 + "] 0 of 1,000 files")
    progress.add(100)
    assert progress.line(30.0) == "[######..................] 1 of 1,000 files, 0.1/s, 1:00 left"
    progress.add(300)
    assert progress.line(40.0) == "[" + "#" * 24 + "] 2 of 1,000 files, 0.1/s"
