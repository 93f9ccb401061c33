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

from cfi2sframe.printable import printable
from cfi2sframe.render.csv import write_comparison, write_folders, write_report
from cfi2sframe.render.headline import headline
from cfi2sframe.render.html import comparison_page, report_page
from cfi2sframe.render.json import comparison_data, report_data
from cfi2sframe.render.markdown import escape, render_markdown
from cfi2sframe.render.table import render_report, render_tables
from cfi2sframe.report.size.answers import answer_table
from cfi2sframe.report.size.records import Failure, FileSizes, Parts, SizeComparison, SizeReport
from cfi2sframe.report.size.tables import comparison_tables, report_tables
from cfi2sframe.report.size.totals import build_comparison, build_report
from tests.support.sizes import (
    check_report,
    library,
    measured,
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


def test_json_of_comparisons(comparison: SizeComparison) -> None:
    _check_schema(comparison_data(comparison))


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


def test_html_of_comparisons(comparison: SizeComparison) -> None:
    page = _parse(comparison_page(comparison))
    _check_page(page)
    words = " ".join(page.text)
    for name in ("grew", "shrank", "added", "removed", "new: bad.so"):
        assert name in words
