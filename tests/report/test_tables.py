# SPDX-License-Identifier: Apache-2.0
"""Every format of a report has the same numbers, and names in it are harmless."""

import base64
import csv
import hashlib
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import account, convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.errors import RequestError
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.report.coverage import Coverage
from cfi2sframe.report.coverage_report import coverage_report
from cfi2sframe.report.size import comparison_report, size_report
from cfi2sframe.report.tables import FORMATS, Column, Report, Table, render
from cfi2sframe.text import printable
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.needs import attempt, need
from tests.support.report import library, measured, sample_files


def covered(name: str, function: str = "") -> Coverage:
    """The account of a file with a function that is left out."""
    fdes = (push_fp(AMD64), asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x30")), TEXT_VADDR + 0x40, 16))
    coverage = account(convert(load(linked_file(AMD64, fdes), name)))
    missing = tuple(each._replace(symbol=function, function=function) for each in coverage.missing)
    return coverage._replace(missing=missing)


def reports(name: str) -> list[Report]:
    """Reports of each kind that have a name wherever names are."""
    file = measured("a.so", library(2))._replace(file=name)
    return [
        size_report([file, measured("b.so", library(1))]),
        size_report([file]),
        comparison_report([file], [file._replace(sframe_size=1), measured("b.so", library(1))], top=None),
        coverage_report([covered(name, name)]),
        coverage_report([covered(name, name), covered("b", name)]),
    ]


@pytest.mark.parametrize("report", [size_report(sample_files()), coverage_report([covered("a"), covered("b")])])
def test_all_formats_have_the_same_cells(report: Report) -> None:
    text, markdown, page = (render(report, name) for name in ("text", "markdown", "html"))
    words = " ".join(parse(page).text)
    plain = re.sub(r"\\(.)", r"\1", markdown)
    for table in report.tables:
        for texts in table.texts:
            assert all(cell in text and cell in plain and cell in words for cell in texts)
    assert json.loads(render(report, "json")) == json.loads(json.dumps({"schema": SCHEMA_VERSION, **report.data}))
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert len(rows) == len(report.data["files"])
    for row, file in zip(rows, report.data["files"], strict=True):
        for key, cell in row.items():
            value = file[key]
            assert cell == ("" if value is None else printable(value) if isinstance(value, str) else str(int(value)))


def test_csv_quotes_text_and_no_number() -> None:
    heading, *lines = render(size_report(sample_files()), "csv").splitlines()
    assert all(re.fullmatch(r'"[a-z_]+"', name) for name in heading.split(","))
    for line in lines:
        assert re.fullmatch(r'"(?:[^"]|"")*","\w+"(,\d+)+', line)


def test_nothing_at_all() -> None:
    for name in FORMATS:
        assert render(Report("nothing", [], [], {"files": []}), name)


def test_a_page_without_jinja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RequestError, match="HTML output needs Jinja2: pip install jinja2"):
        render(reports("a")[0], "html")
    # Before the work begins.
    monkeypatch.chdir(tmp_path)
    assert run("coverage", "/bin/ls", "-o", "page.html").status == 2
    assert not list(tmp_path.iterdir())


def test_text_is_aligned() -> None:
    table = Table(
        "", [Column("n", ","), Column("name"), Column("x", ".1f", " %")], [(1, "long name", 2.0), (2000, "b", None)]
    )
    lines = render(Report("head", [table], ["A note."], {}), "text").splitlines()
    assert lines == ["head", "", "    n  name           x", "    1  long name  2.0 %", "2,000  b", "A note."]


# Names


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


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_in_csv(name: str) -> None:
    for report in reports(name):
        text = render(report, "csv")
        assert text.replace("\r\n", "").isprintable()
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not any(cell.startswith(("=", "+", "@", "-", "\uff1d")) for cell in cells)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_in_text_and_pages(name: str) -> None:
    for report in reports(name):
        assert render(report, "text").replace("\n", "").isprintable()
        widths = {len(table.columns) + 1 for table in report.tables}
        for line in render(report, "markdown").splitlines():
            assert line.isprintable()
            plain = re.sub(r"\\.", "", line)
            # Without its escaped characters a line has no markup, and nothing that becomes a link by itself.
            assert not re.search(r"[`\[\]<>$&]|://|www\.", plain)
            assert not line.startswith("|") or plain.count("|") in widths
        page = render(report, "html")
        assert page.replace("\n", "").isprintable()
        # The page has one script, of its own.
        body = page.partition("</main>\n<script>\n")[0]
        assert not re.search(r"<script|<img|</title></svg><|<[^>]*alert", body)


# Pages


class _Page(HTMLParser):
    """Collects the elements of a page, which must be balanced."""

    VOID = frozenset({"meta"})

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


def parse(page: str) -> _Page:
    """Parse a page, whose elements are balanced."""
    parser = _Page()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


#: Clicks on headings, and then the order of files as the title.
CLICKS: Final = """
const order = column => { document.querySelectorAll("thead button")[column].click()
  return [...document.querySelectorAll("summary")].map(each => each.textContent).join(" ") }
document.title = [order(0), order(0), order(4)].join(" | ")
"""
#: The order of addresses after a click on their heading, and whether the page is as wide as its window, as the title.
ADDRESSES: Final = """
document.querySelectorAll("thead button")[1].click()
document.title = [...document.querySelectorAll("tbody td:nth-child(2)")].map(each => each.textContent).join(" ")
  + ` ${document.documentElement.scrollWidth <= innerWidth}`
"""
BROWSER: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")


def title_after(script: str, page: str, folder: Path, *words: str) -> str:
    """Return the title of a page in a browser, after a script of the test has run in it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ")
    (folder / "page.html").write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    words = (*BROWSER, *words, f"--user-data-dir={folder}", "--dump-dom", f"file://{folder}/page.html")
    done = attempt(need("chromium"), *words)
    (title,) = re.findall(r"<title>(.*)</title>", done.out)
    return str(title)


@pytest.mark.parametrize("report", reports("lib/a.so"))
def test_pages(report: Report) -> None:
    """A page needs nothing else, runs only its own script, and fits light, dark, wide and narrow screens."""
    text = render(report, "html")
    page = parse(text)
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 1
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "input"} & set(names)
    # Headings are reached by keyboard.
    assert names.count("button") == names.count("th")
    policies = [attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes]
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "data", "action", "href"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
        assert re.fullmatch(r"--w:\d+(\.\d)?%", attributes.get("style") or "--w:0%")
        assert tag != "th" or attributes["scope"] == "col"
    assert names.count("table") == names.count("caption") >= len(report.tables)
    assert names.count("h1") == names.count("main") == 1
    assert ("html", {"lang": "en"}) in page.tags
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "color-scheme: light dark" in text
    assert "url(" not in text
    assert "@import" not in text


def test_a_row_of_a_page_opens_what_there_is_about_its_file() -> None:
    size, _, comparison, single, several = reports("lib/a.so")
    page = render(several, "html")
    assert page.count("<details><summary>") == 2
    for shown in re.findall(r"<details>(.*?)</details>", page, re.DOTALL):
        assert [text for text in parse(shown).text if text in ("Code", "Functions", "What is missing, and why")] == [
            *("Code", "Functions", "What is missing, and why")
        ]
    details = re.findall(r"<summary>(.*?)</summary>(.*?)</details>", render(size, "html"), re.DOTALL)
    assert len(details) == 2
    assert all("bytes of CFI" in parse(shown).text for _, shown in details)
    assert "<details>" not in render(single, "html") + render(comparison, "html")


def test_a_page_says_where_it_comes_from() -> None:
    report = reports("lib/a.so")[0]
    assert "size 'a <b>'" in parse(render(report._replace(origin="size 'a <b>'"), "html")).text
    assert "<code>" not in render(report, "html")


def test_columns_sort(tmp_path: Path) -> None:
    """A click sorts by a column, the largest number first; another one the other way."""
    names = ["b.so", "a.so", "c.so"]
    files = [measured(name, library(count)) for name, count in zip(names, (2, 9, 5), strict=True)]
    page = render(size_report(files, order=None), "html")
    assert title_after(CLICKS, page, tmp_path) == "a.so c.so b.so | b.so c.so a.so | a.so b.so c.so"


@pytest.mark.parametrize("width", [1280, 500])
def test_addresses_sort_as_numbers_and_a_page_fits_its_window(width: int, tmp_path: Path) -> None:
    table = Table("", (Column("bytes", ","), Column("address"), Column("function")), [
        (1, "0x1000", "f" * 30), (2, "0xab0", "g" * 300), (3, "0x20", "h i " * 50),
    ])  # fmt: skip
    page = render(Report("head", [table], [], {}), "html")
    found = title_after(ADDRESSES, page, tmp_path, f"--window-size={width},800")
    assert found == "0x20 0xab0 0x1000 true"


def test_paper_has_all_rows(tmp_path: Path) -> None:
    """Also those that are closed on the screen."""
    columns = (Column("n", ","), Column("what"))
    rows = [(number, f"row{number}") for number in range(200)]
    table = Table("", columns, rows, detail=lambda number: [Table("", columns, [(number, f"row{200 + number}")])])
    (tmp_path / "page.html").write_text(render(Report("head", [table], [], {}), "html"))
    words = (*BROWSER, f"--user-data-dir={tmp_path}", f"--print-to-pdf={tmp_path}/page.pdf")
    attempt(need("chromium"), *words, f"file://{tmp_path}/page.html")
    text = attempt(need("pdftotext"), f"{tmp_path}/page.pdf", "-").out
    assert set(re.findall(r"row\d+", text)) == {f"row{number}" for number in range(400)}


def test_a_narrow_page_has_no_headings_of_empty_cells(tmp_path: Path) -> None:
    table = Table("", (Column("address"), Column("section"), Column("function")), [("0x10", "", "f")])
    script = """document.title = [...document.querySelectorAll("tbody td")]
      .map(each => getComputedStyle(each, "::before").content).join(" ")"""
    page = render(Report("head", [table], [], {}), "html")
    found = title_after(script, page, tmp_path, "--window-size=500,800")
    assert found.count("none") == 2
    assert found.startswith('"address "')


def test_a_chart_shows_shares_of_code_and_sizes_by_file() -> None:
    coverages, files = [covered("a.so", "f"), covered("b.so", "f")], sample_files()
    chart = coverage_report(coverages).chart
    assert chart is not None
    assert [bar.name for bar in chart.bars] == ["a.so", "b.so"]
    for bar, coverage in zip(chart.bars, coverages, strict=True):
        assert sum(bar.sizes) == coverage.code_size
        assert sum(chart.widths(bar)) == pytest.approx(100, abs=0.5)
    chart = size_report(files).chart
    assert chart is not None
    largest = max(max(file.sframe_size, file.gnu_size) for file in files)
    assert chart.whole == largest
    assert {bar.sizes[0] for bar in chart.bars} == {file.sframe_size for file in files}
    styles = [
        attributes["style"] for _, attributes in parse(render(size_report(files), "html")).tags if "style" in attributes
    ]
    assert styles == [f"--w:{width}%" for bar in chart.bars for width in chart.widths(bar)]


def test_a_page_of_2000_files_is_small() -> None:
    file, coverage = measured("a.so", library(2)), covered("a", "f")
    names = [f"usr/lib/x86_64-linux-gnu/libsomething-{number}.so.0.0.0" for number in range(2000)]
    pages = (
        render(size_report([file._replace(file=name) for name in names]), "html"),
        render(coverage_report([coverage._replace(file=name) for name in names], top=10), "html"),
    )
    for page in pages:
        assert page.count("<tr>") > 2000
        assert len(page) < 5 << 20
