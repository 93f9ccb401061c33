# SPDX-License-Identifier: Apache-2.0
"""The sessions that the pages show are run as they stand."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

import pytest

from tests.contrib.sessions import agrees, blocks_of, commands_of, play, release_of, variables_of
from tests.contrib.support import ROOT, environment
from tests.support.needs import need
from tests.support.oracle.tools import ToolMissingError

if TYPE_CHECKING:
    from pathlib import Path

#: It has a test of its own, test_upstream.py, which compares to the letter.
UPSTREAM = ROOT / "docs" / "upstream.md"
FILES = ("asm", "c", "python")


def sessions() -> dict[str, tuple[Path, str]]:
    """Return the sessions of all pages by name: blocks for the same tools are one, as a reader would type them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "contrib").rglob("*.md"))]
    labels = {
        (page, block.label)
        for page in pages
        if page != UPSTREAM
        for block in blocks_of(page.read_text())
        if block.language == "console"
    }
    return {f"{page.relative_to(ROOT)} {label}".strip(): (page, label) for page, label in sorted(labels)}


SESSIONS = sessions()


@pytest.mark.oracle
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the pages show AMD64")
@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_goes_as_the_page_shows(name: str, programs: Path, tmp_path: Path) -> None:
    need("bash", "cc")
    page, label = SESSIONS[name]
    blocks = blocks_of(page.read_text())
    variables = environment(programs)
    if label:
        try:
            variables = variables_of(release_of(label), programs, tmp_path)
        except ToolMissingError as error:
            pytest.skip(str(error))
    for block in blocks:
        if block.language in FILES and block.label:
            (tmp_path / block.label).write_text(block.text)
    steps = [
        step
        for block in blocks
        if (block.language, block.label) == ("console", label)
        for step in commands_of(block.text)
    ]
    for (command, shown), printed in zip(steps, play([step[0] for step in steps], tmp_path, variables), strict=True):
        if any("not permitted" in line for line in printed):
            pytest.skip(printed[-1])
        assert agrees(shown, printed), "\n".join([f"$ {command}", *printed])


def test_the_tutorial_has_no_commands_that_are_not_run() -> None:
    for page in [ROOT / "docs" / "tutorial.md"]:
        blocks = blocks_of(page.read_text())
        assert {block.language for block in blocks} == {"c", "console"}
        # Code is in blocks, and every block is one of these.
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert page.read_text().count("\n```") == 2 * len(blocks)
        assert not re.search(r"^ {4}", prose, re.MULTILINE)
