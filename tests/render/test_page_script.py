# SPDX-License-Identifier: Apache-2.0
"""The script of a page in a browser: headings sort, a field filters, and the page's policy lets it run."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.render.html import report_page
from cfi2sframe.report.size.totals import build_report
from tests.support.sizes import library, measured

if TYPE_CHECKING:
    from pathlib import Path

#: Does what a reader does with the table of files, and writes what it shows into the title.
PROBE = """
const frame = [...document.querySelectorAll(".scroll")].find((one) => one.getAttribute("aria-label") === "Files");
const heads = frame.querySelectorAll("thead button");
const shown = [];
const look = (column) => {
  const rows = [...frame.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
  shown.push(rows.slice(0, 2).map((row) => row.cells[column].textContent).join(" "));
};
heads[2].click(); look(2);
heads[2].click(); look(2);
heads[0].click(); look(0);
const filter = frame.previousElementSibling.querySelector("input");
filter.value = "LIB/19"; filter.dispatchEvent(new Event("input")); look(0);
shown.push(frame.previousElementSibling.querySelector("output").textContent);
document.title = `shown: ${shown.join(" | ")}`;
"""


def _title(page: str, tmp_path: Path) -> str:
    """Return the title of a page after its scripts have run."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is here; get one with: apt-get install chromium")
    (tmp_path / "page.html").write_text(page)
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run(
        [*words, "--dump-dom", f"file://{tmp_path}/page.html"], capture_output=True, text=True, check=True, timeout=300
    )
    found = re.search("<title>(.*?)</title>", done.stdout)
    assert found is not None
    return found.group(1)


@pytest.mark.oracle
def test_sorting_and_filtering(tmp_path: Path) -> None:
    sizes = [measured(f"lib/{number}.so", library(number)) for number in range(1, 21)]
    page = report_page(build_report(sizes, version=3))
    probe_hash = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{probe_hash}' ")
    page = page.replace("</body>", f"<script>{PROBE}</script></body>")
    bytes_of = sorted(section.size for file in sizes if (section := file.section(3)) is not None)
    assert _title(page, tmp_path) == (
        f"shown: {bytes_of[-1]} {bytes_of[-2]} | {bytes_of[0]} {bytes_of[1]} | lib/1.so lib/10.so | lib/19.so | "
        "1 of 20 shown; the last line is of all 20"
    )


@pytest.mark.oracle
def test_another_script_does_not_run(tmp_path: Path) -> None:
    """The policy names the page's script, so that a name could not bring one of its own."""
    page = report_page(build_report([measured("a.so", library(1))], version=3))
    probe = "<script>document.title = 'ran'</script></body>"
    assert _title(page.replace("</body>", probe), tmp_path) == "SFrame size report"
