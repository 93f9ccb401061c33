# SPDX-License-Identifier: Apache-2.0
"""What the pages show is run: sessions, the faults of other tools to the letter, and the table of printers.

A block `c NAME` or `asm NAME` of a page is a file. A block `console` is a session, whose first line may name the
tools that it needs: each line that starts with `$ ` is a command, and the lines after it are what it prints.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.contrib import ROOT, environment, run, shell_script
from tests.support.needs import attempt, need
from tests.support.oracle.tools import find_binutils, oracles_directory, tool_version
from tests.support.placing.embedded import is_converted

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the pages' programs are for AMD64"),
]

TIMEOUT_SECONDS = 300
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Between what one command prints and the next: ASCII's record separator.
_SEPARATOR = "\x1e"
_NUMBER = re.compile(r"(?:0x[0-9a-f]+|[0-9a-f]{16}|\d[\d,]*(?:\.\d+)?)")
_EXACT = re.compile(r"0|100\.0+")
_LARGE = re.compile(r"0x[0-9a-f]{3,}|\d{1,3}(?:,\d{3})+")


class Block(NamedTuple):
    """A fenced block: its language, the rest of its first line, and its text."""

    language: str
    label: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page that name a language."""
    return [Block(*found) for found in _BLOCK.findall(text)]


def commands_of(session: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a session with the lines that it prints."""
    command, printed = "", list[str]()
    for line in session.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        elif command.endswith("\\"):
            command += f"\n{line}"
        else:
            printed.append(line)
    yield command, printed


def play(commands: Sequence[str], folder: Path, variables: Mapping[str, str]) -> list[list[str]]:
    """Run commands in one shell in a folder, and end what they leave behind; return the lines that each prints."""
    script = folder / ".session"
    script.write_text("".join(f"{command}\nprintf '\\036'\n" for command in commands))
    heard = folder / ".heard"
    with (
        heard.open("wb") as out,
        subprocess.Popen(
            ["bash", script.name],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(TIMEOUT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    parts = heard.read_text().split(_SEPARATOR)
    for path in (script, heard):
        path.unlink()
    return [[line.rstrip() for line in part.splitlines()] for part in parts[: len(commands)]]


def agrees(shown: Sequence[str], printed: Sequence[str], known: dict[str, str]) -> bool:
    """Whether lines are as a page shows them.

    A number stands for any, except that nothing and all of something (`0`, `100.00`) stand for themselves, and that
    large numbers are equal to one another where the page shows equal ones, and only there: `known` has those seen so
    far. `...` in a line stands for any text, and a line `...` for any number of lines. Only the first of several spaces
    counts, since the widths of numbers differ.
    """
    rows = (r"(?:.*\n)*?" if line.strip() == "..." else f"{_pattern(line)}\n" for line in shown)
    found = re.fullmatch("".join(rows), "".join(f"{_narrow(line)}\n" for line in printed))
    if found is None:
        return False
    numbers = [number for line in shown for number in _NUMBER.findall(_narrow(line)) if not _EXACT.fullmatch(number)]
    pairs = zip(numbers, found.groups(), strict=True)
    return all(
        known.setdefault(f"shown {ours}", theirs) == theirs and known.setdefault(f"printed {theirs}", ours) == ours
        for ours, theirs in pairs
        if _LARGE.fullmatch(ours)
    )


def _pattern(line: str) -> str:
    """Return the pattern of a line, with a group for each number that is not exact."""
    texts = _narrow(line).split("...")
    return ".*".join("".join(map(_pattern_of, re.split(f"({_NUMBER.pattern})", text))) for text in texts)


def _pattern_of(part: str) -> str:
    return f"({_NUMBER.pattern})" if _NUMBER.fullmatch(part) and not _EXACT.fullmatch(part) else re.escape(part)


def _narrow(line: str) -> str:
    return re.sub(r"(?<=\S) +", " ", line.rstrip())


class Release(NamedTuple):
    """The tools of a release: the version that they print, and where they are, None for the machine's own."""

    version: str
    suite: Path | None


def release_of(label: str) -> Release:
    """Find the tools that a label names, `binutils 2.44`; the test is skipped where they are not here."""
    name, _, wanted = label.partition(" ")
    sid = oracles_directory() / "sid"
    if name == "binutils" and wanted == "2.40":
        return Release(find_binutils("2.40").version, None)
    if name == "binutils":
        tools = find_binutils("2.44" if wanted == "2.44" else "newest")
        return Release(tools.version, tools.directory.parent)
    if name == "llvm":
        if not (sid / ".done").exists():
            pytest.skip("no newest llvm-readelf: make oracles")
        return Release(tool_version(str(sid / "bin" / "llvm-dwarfdump")), sid)
    path = shutil.which(name)
    found = tool_version(path) if path else ""
    if not (found + ".").startswith(wanted + "."):
        pytest.skip(f"the machine's own {name} is not {wanted}")
    return Release(found, None)


def variables_of(release: Release, programs: Path) -> dict[str, str]:
    """Return the environment of a session: the release's tools are first in PATH."""
    variables = environment(programs, LC_ALL="C")
    folders = [str(Path(sys.executable).parent), variables["PATH"]]
    if release.suite is not None:
        folders.insert(0, str(release.suite / "bin"))
    return variables | {"PATH": os.pathsep.join(folders)}


# Sessions

UPSTREAM = ROOT / "docs" / "upstream.md"
FAULTS = ROOT / "contrib" / "faults"


def sessions() -> dict[str, tuple[Path, str]]:
    """Return the sessions of all pages by name: blocks for the same tools are one, as a reader would type them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "contrib").rglob("*.md"))]
    labels = {
        (page, block.label) for page in pages for block in blocks_of(page.read_text()) if block.language == "console"
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
    if is_converted("/bin/bash"):
        pytest.skip("the pages show a system whose programs have no section yet")
    page, label = SESSIONS[name]
    variables = environment(programs)
    if label:
        variables = variables_of(release_of(label), programs)
    blocks = [block for block in blocks_of(page.read_text()) if block.label or block.language == "console"]
    known: dict[str, str] = {}
    for command, shown, said in steps_of(blocks, label, variables, tmp_path):
        if any("not permitted" in line for line in said):
            pytest.skip(said[-1])
        assert agrees(shown, said, known), "\n".join([f"$ {command}", *said, str(known)])


def faults() -> dict[str, tuple[str, str]]:
    """Return each reproducer with each release whose output it shows, by a name."""
    found = {}
    for path in sorted(FAULTS.glob("*.sh")):
        (releases,) = re.findall(r"^# Prints with (.+):$", path.read_text(), re.MULTILINE)
        tool, _, versions = releases.partition(" ")
        for version in re.findall(r"[\d.]+", versions):
            found[f"{path.stem}-{version}"] = (path.stem, f"{tool} {version}")
    return found


def test_each_fault_of_the_table_has_a_reproducer() -> None:
    listed = re.findall(r"^\| .* \| `([\w-]+)` \|$", UPSTREAM.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in FAULTS.glob("*.sh"))


@pytest.mark.sampled
@pytest.mark.parametrize("name", faults())
def test_the_fault_is_still_there(name: str, programs: Path) -> None:
    """A tool that was mended, or a reproducer that has grown old, turns the run red."""
    fault, label = faults()[name]
    release = release_of(label)
    wanted = label.split()[1]
    assert (release.version + ".").startswith(wanted + "."), f"the page shows {wanted}; here is {release.version}"
    text = (FAULTS / f"{fault}.sh").read_text()
    need("sh", "diff", *re.findall(r"^(gcc|clang|objdump) ", text, re.MULTILINE))
    result = attempt(FAULTS / "run", fault, env=variables_of(release, programs))
    assert (result.status, result.err) == (0, ""), result.out + result.err


@pytest.mark.parametrize(
    ("release", "command", "status", "verdict"),
    [
        ("9.1 and 12", "echo right", 1, "differs: mended in tool 12.3?"),
        ("12", "no-such-tool", 2, "not run: no-such-tool is missing"),
        ("13 and 2.12", "echo right", 2, "not comparable: it needs tool 13 and 2.12; here is 12.3"),
    ],
)
def test_a_fault_that_is_not_seen(release: str, command: str, status: int, verdict: str, tmp_path: Path) -> None:
    need("sh", "diff")
    shutil.copy(FAULTS / "run", tmp_path)
    shell_script(tmp_path / "tool", "echo 'A tool (of Debian) 12.3'\n")
    (tmp_path / "fault.sh").write_text(f"{command}\n# Prints with tool {release}:\n#> wrong\n")
    result = attempt(tmp_path / "run", "fault", env=environment(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert result.status == status
    assert result.out.splitlines()[-1] == f"fault: {verdict}"


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
