# SPDX-License-Identifier: Apache-2.0
"""What the pages show is run: sessions, the faults of other tools to the letter, and the table of printers."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.contrib.sessions import Block, agrees, blocks_of, commands_of, play, release_of, variables_of
from tests.contrib.support import ROOT, environment, run
from tests.support.needs import attempt, need
from tests.support.oracle.tools import find_binutils, oracles_directory, tool_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the pages' programs are for AMD64"),
]

UPSTREAM = ROOT / "docs" / "upstream.md"
#: GNU ld names itself by the path that it was started with.
LINKER_NAME = re.compile(r"^/\S*/\S*ld\S*:", re.MULTILINE)


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


def steps_of(
    blocks: list[Block], label: str, variables: dict[str, str], folder: Path
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Run the sessions of a label in a folder with the files of the blocks; yield commands, what is shown, and said."""
    for block in blocks:
        if block.language != "console":
            (folder / block.label).write_text(block.text)
    steps = [
        step
        for block in blocks
        if (block.language, block.label) == ("console", label)
        for step in commands_of(block.text)
    ]
    heard = play([command for command, _ in steps], folder, variables)
    yield from ((command, shown, said) for (command, shown), said in zip(steps, heard, strict=True))


SESSIONS = sessions()


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_goes_as_the_page_shows(name: str, programs: Path, tmp_path: Path) -> None:
    need("bash", "cc")
    page, label = SESSIONS[name]
    variables = environment(programs)
    if label:
        variables = variables_of(release_of(label), programs)
    blocks = [block for block in blocks_of(page.read_text()) if block.label or block.language == "console"]
    for command, shown, said in steps_of(blocks, label, variables, tmp_path):
        if any("not permitted" in line for line in said):
            pytest.skip(said[-1])
        assert agrees(shown, said), "\n".join([f"$ {command}", *said])


def faults() -> dict[str, tuple[str, list[Block]]]:
    """Return the sections of the page that have a session: its label, the page's files, and the section's sessions."""
    text = UPSTREAM.read_text()
    files = [block for block in blocks_of(text) if block.language != "console"]
    _, *parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    sections = zip(parts[::2], map(blocks_of, parts[1::2]), strict=True)
    return {
        f"{title}-{block.label}".replace(" ", "-"): (block.label, [*files, *blocks])
        for title, blocks in sections
        for block in blocks
        if block.language == "console"
    }


FAULTS = faults()


@pytest.mark.sampled
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_still_there(name: str, programs: Path, tmp_path: Path) -> None:
    """A tool that was mended, or a page that has grown old, turns the run red."""
    label, blocks = FAULTS[name]
    release = release_of(label)
    wanted = label.split()[1]
    assert (release.version + ".").startswith(wanted + "."), f"the page shows {wanted}; here is {release.version}"
    text = "".join(block.text for block in blocks if block.language == "console")
    need("bash", *re.findall(r"(?:^\$|\|) (g?cc|objdump)\b", text, re.MULTILINE))
    for command, shown, said in steps_of(blocks, label, variables_of(release, programs), tmp_path):
        assert [LINKER_NAME.sub("ld:", line) for line in said] == shown, command


#: The columns of the table of printers in docs/readers.md, and how to convert for them.
OPTIONS: Final = {
    "version 1": ("--sframe-version", "1"),
    "2, errata 0": ("--sframe-version", "2", "--errata", "0"),
    "2, errata 1": ("--sframe-version", "2", "--errata", "1"),
    "2, errata 2": ("--sframe-version", "2", "--errata", "2"),
    "version 3": (),
}
#: How a printer begins the lines of a function.
FUNCTION = re.compile(r"func idx \[|FuncDescEntry \[")


def printers() -> dict[str, list[str]]:
    """Return the rows of the table of printers; its header has the names of the columns."""
    text = (ROOT / "docs" / "readers.md").read_text().partition("| prints |")[2].partition("\n\n")[0]
    header, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines())
    assert header == list(OPTIONS)
    return {name: cells for name, *cells in rows}


def tools_of(row: str, programs: Path) -> list[list[str]]:
    """Return the commands of a row's tools; the test is skipped where they are not here."""
    if row == "cfi2sframe dump":
        return [[str(programs / "cfi2sframe"), "dump"]]
    names, _, wanted = row.rpartition(" ")
    if names == "llvm-readelf":
        release_of("llvm 23")
        path = str(oracles_directory() / "sid" / "bin" / names)
        found, tools = tool_version(path), [path]
    else:
        binutils = find_binutils("2.40" if wanted == "2.40" else "2.44" if wanted == "2.44" else "newest")
        found, tools = binutils.version, [binutils.tool(name) for name in names.split(", ")]
    assert (found + ".").startswith(wanted + "."), f"the page has {wanted}; here is {found}"
    return [[tool, "--sframe"] for tool in tools]


@pytest.fixture(scope="module")
def converted(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same program with a section of each kind."""
    need("cc")
    folder = tmp_path_factory.mktemp("readers")
    (folder / "main.c").write_text("int main(int argc, char **argv) { return argv[argc] != 0; }\n")
    run("cc", "-O2", "-o", folder / "plain", folder / "main.c")
    made = [folder / f"program{number}" for number in range(len(OPTIONS))]
    for target, options in zip(made, OPTIONS.values(), strict=True):
        run("cfi2sframe", folder / "plain", "-o", target, *options, env=environment(programs))
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("row", printers())
def test_what_prints_which_version(row: str, converted: list[Path], programs: Path) -> None:
    tools = tools_of(row, programs)
    for tool in tools:
        printed = ["yes" if FUNCTION.search(attempt(*tool, path).out) else "no" for path in converted]
        assert printed == printers()[row], tool
