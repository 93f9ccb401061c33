# SPDX-License-Identifier: Apache-2.0
"""The wrappers' man page, which is written by hand: readable, and with every variable that the code reads."""

from __future__ import annotations

import ast
import os

import pytest

from cfi2sframe.cli.wrapper.programs import role_of
from tests.contrib.support import PROGRAMS, ROOT, attempt, run
from tests.support.needs import need

pytestmark = pytest.mark.sampled

PAGES = ROOT / "data" / "share" / "man" / "man1"
MAN = {"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
WRAPPERS = [name for name in PROGRAMS if name != "cfi2sframe"]


def variables_read() -> set[str]:
    """Return the literals that are looked up in the environment, by any name of a function that does."""
    found = {name for each in WRAPPERS for name in (role_of(each, []).variable, role_of(each, []).running)}
    for path in (ROOT / "cfi2sframe" / "cli" / "wrapper").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                value = node.args[0].value
                if name in ("get", "is_set") and isinstance(value, str) and value.isupper():
                    found.add(value)
    return found


@pytest.mark.parametrize("name", WRAPPERS)
def test_each_wrapper_has_the_page(name: str) -> None:
    need("man")
    text = run("man", "-l", PAGES / f"{name}.1", cwd=PAGES.parent, env=MAN).out
    assert all(each in text for each in WRAPPERS)
    assert "ENVIRONMENT" in text


def test_it_reads_without_warnings() -> None:
    need("mandoc")
    result = attempt("mandoc", "-T", "lint", "-W", "warning", PAGES / "cfi2sframe-ld.1")
    assert result.out == ""


def test_it_has_the_variables_that_are_read_and_no_others() -> None:
    page = (PAGES / "cfi2sframe-ld.1").read_text()
    _, _, section = page.partition(".Sh ENVIRONMENT")
    section, _, _ = section.partition(".Sh EXIT STATUS")
    named = {
        word
        for line in section.splitlines()
        if line.startswith(".It Ev ")
        for word in line.removeprefix(".It Ev ").replace(",", " ").split()
    }
    read = variables_read()
    assert len(read) > 10
    assert named == read
