# SPDX-License-Identifier: Apache-2.0
"""docs/readers.md: the tools that print sections print those that the page says, and no others."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.contrib.support import ROOT, attempt, environment, run
from tests.support.needs import need
from tests.support.oracle.tools import ToolMissingError, find_binutils, oracles_directory, tool_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the page's programs are for AMD64"),
    pytest.mark.sampled,
]

PAGE = ROOT / "docs" / "readers.md"
#: The columns of the page's table, and how to convert for them.
OPTIONS: Final = {
    "version 1": ("--sframe-version", "1"),
    "2, errata 0": ("--sframe-version", "2", "--errata", "0"),
    "2, errata 1": ("--sframe-version", "2", "--errata", "1"),
    "2, errata 2": ("--sframe-version", "2", "--errata", "2"),
    "version 3": (),
}
#: How a printer begins the lines of a function.
FUNCTION = re.compile(r"func idx \[|FuncDescEntry \[")


def table() -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the table of printers; its header has the names of the columns."""
    lines = PAGE.read_text().partition("| prints |")[2].splitlines()
    assert [cell.strip() for cell in lines[0].strip("| ").split("|")] == list(OPTIONS)
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        name, *cells = (cell.strip() for cell in line.strip("| ").split("|"))
        yield name, cells


def programs_of(row: str, programs: Path) -> list[list[str]]:
    """Return the commands of a row's tools; raise ToolMissingError where they are not the release that it names."""
    if row == "cfi2sframe dump":
        return [[str(programs / "cfi2sframe"), "dump"]]
    names, _, wanted = row.rpartition(" ")
    if names == "llvm-readelf":
        path = oracles_directory() / "sid" / "bin" / names
        if not path.exists():
            message = "llvm-readelf is not here; fetch it with: make oracles"
            raise ToolMissingError(message)
        found, tools = tool_version(str(path)), [str(path)]
    else:
        binutils = find_binutils("2.40" if wanted == "2.40" else "2.44" if wanted == "2.44" else "newest")
        found, tools = binutils.version, [binutils.tool(name) for name in names.split(", ")]
    assert (found + ".").startswith(wanted + "."), f"the page has {wanted}; here is {found}"
    return [[tool, "--sframe"] for tool in tools]


@pytest.fixture(scope="module")
def converted(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same program with a section of each kind."""
    need("cc")
    folder = tmp_path_factory.mktemp("readers")
    (folder / "main.c").write_text("int main(int argc, char **argv) { return argv[argc] != 0; }\n")
    run("cc", "-O2", "-o", folder / "plain", folder / "main.c")
    made = {}
    for number, (column, options) in enumerate(OPTIONS.items()):
        made[column] = folder / f"program{number}"
        run("cfi2sframe", folder / "plain", "-o", made[column], *options, env=environment(programs))
    return made


@pytest.mark.parametrize("row", [name for name, _ in table()])
def test_what_prints_which_version(row: str, converted: dict[str, Path], programs: Path) -> None:
    try:
        tools = programs_of(row, programs)
    except ToolMissingError as error:
        pytest.skip(str(error))
    for tool in tools:
        printed = [
            "yes" if FUNCTION.search(attempt(*tool, path).out) else "no" for path in (converted[c] for c in OPTIONS)
        ]
        assert printed == dict(table())[row], tool
