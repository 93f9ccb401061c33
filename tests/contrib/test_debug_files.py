# SPDX-License-Identifier: Apache-2.0
"""Conversion before debug information is split off, or afterwards: what gdb and eu-unstrip make of the two files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe.cli import main
from tests.contrib.support import attempt, copy_recipe, gdb_session, lists_section, run
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

WARNING = "warning: section .sframe not found in"


def split(program: Path, tool: Literal["objcopy", "eu-strip"]) -> Path:
    """Move the debug information of a program to a file of its own, as dh_strip does, or as rpm's find-debuginfo."""
    debug = program.with_name(f"{program.name}.debug")
    if tool == "objcopy":
        run("objcopy", "--only-keep-debug", "--compress-debug-sections", program, debug)
        run("strip", "--remove-section=.comment", "--remove-section=.note", program)
        run("objcopy", "--add-gnu-debuglink", debug, program)
    else:
        run("eu-strip", "--remove-comment", "-f", debug, program)
    return debug


@pytest.mark.parametrize("tool", ["objcopy", "eu-strip"])
@pytest.mark.parametrize("linker", ["bfd", "lld"])
@pytest.mark.parametrize("order", ["before", "afterwards"])
def test_order(
    order: Literal["before", "afterwards"], linker: str, tool: Literal["objcopy", "eu-strip"], tmp_path: Path
) -> None:
    """In a program of lld, sections move; eu-unstrip looks for each at its address."""
    need("cc", "gdb", "objcopy", "strip", "eu-strip", "eu-unstrip", f"ld.{linker}")
    sources, program = copy_recipe("make", tmp_path / "sources"), tmp_path / "words"
    run("cc", "-O2", "-g", f"-fuse-ld={linker}", "-o", program, "main.c", "words.c", cwd=sources)
    if order == "before":
        assert main(["--in-place", str(program)]) == 0
    debug = split(program, tool)
    if order == "afterwards":
        assert main(["--in-place", str(program)]) == 0
    assert lists_section(debug) == (order == "before")
    assert (WARNING in gdb_session(program, tmp_path)) == (order == "afterwards")
    joined = attempt("eu-unstrip", program, debug, "-o", tmp_path / "joined")
    if order == "before":
        assert joined.status == 0, joined.err
        assert main(["verify", str(tmp_path / "joined")]) == 0
        assert attempt(tmp_path / "joined", "--help") == attempt(program, "--help")
