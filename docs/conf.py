# SPDX-License-Identifier: Apache-2.0
"""The documents as a site: `make docs`.

The source directory is the root of the project, so that pages of docs/ and contrib/ link to one another, and to the
sources, by the same paths wherever they are read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#:\s]+)\)")
sys.path.insert(0, str(ROOT))

from cfi2sframe import __version__  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "cfi2sframe"
version = release = __version__

extensions = ["myst_parser"]
root_doc = "README"
#: What the site lists at its side, in this order.
PAGES = """
docs/tutorial docs/should-i-use-it docs/readers docs/deploying contrib/README docs/reports docs/trace docs/library
docs/python docs/command-line docs/writing-a-reader docs/format-notes docs/design docs/upstream SECURITY CONTRIBUTING
CHANGELOG tests/support/consumer/README
"""
include_patterns = ["docs/**", "contrib/README.md", "tests/support/*/README.md", "*.md"]
# Directories without pages are not searched.
exclude_patterns = [".*", "build", "dist", "testdata", "tests/[!s]*"]
templates_path = ["templates"]
html_theme = "furo"
html_title = f"cfi2sframe {__version__}"
html_show_copyright = False
html_show_sourcelink = False
# Leads to README.html.
html_additional_pages = {"index": "to-the-first-page.html"}

myst_heading_anchors = 4
# Two hyphens are two hyphens.
smartquotes = False
# The lexers of C and of shells know less than all of what the pages show.
suppress_warnings = ["misc.highlighting_failure"]


def read(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make a link to a directory, which has no page, its text, and add the list of pages to the first one."""
    folder = (ROOT / page).parent
    source[0] = _LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], source[0])
    if page == root_doc:
        names = "\n".join(f"/{name}" for name in PAGES.split())
        source[0] += f"\n```{{toctree}}\n:hidden:\n{names}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect what changes the pages."""
    app.connect("source-read", read)
