# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""docs/generated.py: what the site's pages have from the program. `make docs` itself checks every link."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe.cli.parsers import VERBS, make_parser, parsers_of
from tests.contrib.support import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

DOCS = ROOT / "docs"


@pytest.fixture(name="script", scope="module")
def _script() -> Any:
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled(script: Any, page: str) -> str:
    """Return the text of a page that Sphinx gets."""
    source = [(ROOT / f"{page}.md").read_text()]
    script.fill_in(ROOT, page, source)
    (text,) = source
    assert "<!-- the" not in text
    return str(text)


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_line_has_every_option(script: Any, verb: str) -> None:
    section = filled(script, "docs/command-line").partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^```\{option\} (.+)$", section, re.MULTILINE)
    names = {name for line in listed for name in re.findall(r"(?:^|, )(--?[\w-]+)", line)}
    wanted = {
        name
        for action in parsers_of(make_parser())[verb]._actions  # argparse has no public way to ask
        if action.help != argparse.SUPPRESS
        for name in action.option_strings
    }
    assert names == wanted - {"-h", "--help"}


@pytest.mark.parametrize("module", ["cfi2sframe", "cfi2sframe.trace"])
def test_the_python_page_has_every_public_name(script: Any, module: str) -> None:
    text = filled(script, "docs/python")
    imported = importlib.import_module(module)
    names = {name for name in imported.__all__ if not inspect.ismodule(getattr(imported, name))} - {"__version__"}
    assert set(re.findall(rf"^\.\. auto\w+:: {re.escape(module)}\.(\w+)$", text, re.MULTILINE)) == names


def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    """A broken link, a page that no list of pages names, a docstring that is no markup would be one."""
    for name in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not here: make docs")
    words = ["--conf-dir", str(DOCS), "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    run(sys.executable, "-m", "sphinx", *words, "-d", tmp_path / "trees", ROOT, tmp_path / "site")
    assert (tmp_path / "site" / "docs" / "index.html").exists()
