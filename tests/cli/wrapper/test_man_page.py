# SPDX-License-Identifier: Apache-2.0
"""The man page of the wrappers: every variable that they read, under each of their names."""

import os
import re
from pathlib import Path

import pytest

from cfi2sframe.cli.wrapper.programs import role_of
from tests.support.contrib import PROGRAMS, ROOT, environment, run
from tests.support.needs import attempt, need

pytestmark = pytest.mark.sampled
MAN_PAGE = ROOT / "data" / "share" / "man" / "man1" / "cfi2sframe-ld.1"
WRAPPERS = [name for name in PROGRAMS if name != "cfi2sframe"]


def test_the_man_page_has_the_variables_that_are_read_and_no_others() -> None:
    read = {name for each in WRAPPERS for name in (role_of(each, []).variable, role_of(each, []).running)}
    for path in (ROOT / "cfi2sframe" / "cli" / "wrapper").glob("*.py"):
        read.update(re.findall(r'\b(?:get|is_set)\("([A-Z_0-9]+)"', path.read_text()))
    section = MAN_PAGE.read_text().partition(".Sh ENVIRONMENT")[2].partition(".Sh EXIT STATUS")[0]
    items = re.findall(r"^\.It Ev (.*)$", section, re.MULTILINE)
    assert len(read) > 10
    assert {word for item in items for word in item.replace(",", " ").split()} == read


def test_the_man_page_is_that_of_each_wrapper(programs: Path) -> None:
    need("man", "mandoc")
    env = {"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
    for name in WRAPPERS:
        text = run("man", "-l", MAN_PAGE.with_name(f"{name}.1"), cwd=MAN_PAGE.parents[1], env=env).out
        assert all(each in text for each in WRAPPERS)
    assert attempt("mandoc", "-T", "lint", "-W", "warning", MAN_PAGE).out == ""
    assert "CFI2SFRAME_STRICT" in run("cfi2sframe-cc", "--cfi2sframe-help", env=environment(programs)).out
